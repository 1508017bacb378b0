#!/usr/bin/env bash
# test_local.sh -- pith list and pith rm, and how a model's name becomes its file: pith's own folder
# and the folders of other tools.
. "$(dirname "$0")"/../report.sh
needs local "$pith"
unset XDG_DATA_HOME XDG_CACHE_HOME HF_HOME HF_HUB_CACHE HF_ENDPOINT LLAMA_CACHE OLLAMA_MODELS
export HOME=$dir/home PITH_MODELS=$dir/models PITH_CACHE=$dir/cache

# put PATH...: a model at each.
put()
{
    local p
    for p; do
        mkdir -p "${p%/*}" && cp "$dir/m.gguf" "$p"
    done
}
# is NAME MODEL PATH: a command finds this file for this name.
is() { same "$1" "$("$pith" inspect "$2" --json 2>&1 |
    sed -n 's/^ "path": "\(.*\)",$/\1/p')" "$3"; }

"$pith" synth "$dir/m.gguf" >/dev/null || fail synth "no model"
gives nothing 0 "no models here; 'pith pull' fetches one into $dir/models" list
gives nothing_json 0 '^\[\]$' list --json
gives no_such_name 2 "pith list" run nothing -p x

own=$PITH_MODELS/hf/some/Repo-GGUF
put "$own/m-Q8_0.gguf" "$own/m-Q4_K_M.gguf" "$own/mmproj-F16.gguf" \
    "$PITH_MODELS/ollama/tiny/tiny-1b.gguf" \
    "$PITH_MODELS/ollama/me/tiny/tiny-latest.gguf" \
    "$PITH_MODELS/https/example.org_8080/a/web.gguf" "$PITH_MODELS/by-hand.gguf" \
    "$PITH_MODELS/x/twice.gguf" "$PITH_MODELS/y/twice.gguf"
hub=$HOME/.cache/huggingface/hub/models--Other--Repo
put "$hub/blobs/abc" "$HOME/.cache/llama.cpp/one_two_three-Q5_K_M.gguf" \
    "$HOME/.lmstudio/models/pub/rep/lm-Q6_K.gguf"
mkdir -p "$hub/snapshots/123" "$hub/snapshots/456"
ln -s ../../blobs/abc "$hub/snapshots/123/hub-IQ4_XS.gguf"
ln -s ../../blobs/abc "$hub/snapshots/456/hub-IQ4_XS.gguf"
digest=$(printf '%064d' 7)
manifest=$HOME/.ollama/models/manifests/registry.ollama.ai/library/blob/latest
put "$HOME/.ollama/models/blobs/sha256-$digest" "$manifest"
cat >"$manifest" <<END
{"layers": [{"mediaType": "application/vnd.ollama.image.template",
             "digest": "sha256:$(printf '%064d' 1)"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:$digest",
             "size": 1}]}
END
n=0 # what is broken is passed over
for text in '' '[' '{}' '{"layers": 3}' \
    '{"layers": [{"mediaType": "application/vnd.ollama.image.model",
      "digest": "sha256:../../x"}]}' \
    '{"layers": [{"mediaType": 5}, 7, null]}'; do
    echo "$text" >"${manifest%/*}/bad$((n++))"
done

is default hf:some/Repo-GGUF "$own/m-Q4_K_M.gguf"
is case_of_repo hf:Some/repo-gguf:q8_0 "$own/m-Q8_0.gguf"
is by_file hf:some/Repo-GGUF:mmproj-F16.gguf "$own/mmproj-F16.gguf"
is by_name m-Q8_0 "$own/m-Q8_0.gguf"
is by_file_name by-hand.gguf "$PITH_MODELS/by-hand.gguf"
is ollama_tag ollama:tiny:1b "$PITH_MODELS/ollama/tiny/tiny-1b.gguf"
is ollama_space ollama:me/tiny "$PITH_MODELS/ollama/me/tiny/tiny-latest.gguf"
is address https://example.org:8080/a/web.gguf#part "$PITH_MODELS/https/example.org_8080/a/web.gguf"
is hub_cache hf:Other/Repo:IQ4_XS "$hub/snapshots/123/hub-IQ4_XS.gguf"
is llama_cpp hf:one/two "$HOME/.cache/llama.cpp/one_two_three-Q5_K_M.gguf"
is lm_studio hf:pub/rep "$HOME/.lmstudio/models/pub/rep/lm-Q6_K.gguf"
is ollama_blob ollama:blob "$HOME/.ollama/models/blobs/sha256-$digest"
is ollama_blob_name blob:latest "$HOME/.ollama/models/blobs/sha256-$digest"
is a_path_first "$dir/m.gguf" "$dir/m.gguf"
for c in run bench inspect embed serve; do
    gives "empty_name_$c" 1 'the name of the model is empty; wanted a file' $c ""
done
gives near_name 2 'no model of this name; did you mean m-Q8_0\?' inspect m-Q9_0
gives near_name_case 2 'no model of this name; did you mean by-hand\?' inspect BY-Hand.gguf
gives no_near_name 2 "no model of this name; 'pith list'" inspect something-else
gives several 2 "name of several models" inspect twice
gives bad_hf 1 'wanted hf:OWNER/REPO' inspect hf:one
gives bad_hf_dots 1 'wanted hf:OWNER/REPO' inspect hf:../x
gives bad_hf_file 1 'wanted hf:OWNER/REPO' inspect hf:a/b:../../x.gguf
gives bad_ollama 1 'wanted ollama:NAME' inspect ollama:a/b/c
gives bad_http 1 'http is for this machine alone' inspect http://example.org/x.gguf
gives bad_http_name 1 'http is for this machine alone' inspect http://127.0.0.1.example.org/x.gguf
gives bad_password 1 'user or password' inspect https://a:b@example.org/x.gguf
gives bad_address 1 'address of a .gguf file' inspect https://example.org/x.zip
gives bad_address_dots 1 'address of a .gguf file' inspect https://example.org/../../x.gguf

# A split model is one, and whole when all parts are there.
for n in 1 2; do put "$PITH_MODELS/hf/s/s/split-Q4_0-0000$n-of-00003.gguf"; done
put "$PITH_MODELS/hf/s/t/u-Q4_0.gguf.part"
gives list 0 '^m-Q4_K_M +[0-9.]+ KiB +f32 +llama +0\.12M +pith' list
gives list_parts 0 '^split-Q4_0 .*2 of 3 parts' list
gives list_unfinished 0 '^u-Q4_0 .*unfinished' list
gives part_alone 2 "'pith pull hf:s/s:split-Q4_0-00001-of-00003.gguf' goes on" run split-Q4_0 -p x
echo no >"$PITH_MODELS/bad.gguf"
gives list_damaged 0 '^bad .*cannot be read' list
"$pith" list --json >"$out"
same list_json \
    "$(python3 -c \
    'import json, sys
l = json.load(sys.stdin)
print(len(l), sorted({m["where"] for m in l}), sum(m["complete"] for m in l),
      sum(m["bytes"] for m in l if m["name"] == "bad"))' <"$out" 2>&1)" \
    "16 ['huggingface', 'llama.cpp', 'lmstudio', 'ollama', 'pith'] 14 3"

gives rm_asks 1 'nobody to ask' rm m-Q8_0
gives rm_none 2 'no model of this name' rm nothing --yes
gives rm_several 2 'name of 2 models' rm twice --yes
gives rm_repo_several 2 'name of 3 models' rm hf:some/Repo-GGUF --yes
for name in hub-IQ4_XS hf:one/two lm-Q6_K ollama:blob; do
    gives "rm_others_$name" 2 'belongs to' rm "$name" --yes; done
gives rm_path_elsewhere 2 'no model of this name' rm "$dir/m.gguf" --yes
same nothing_is_gone "$(find "$dir" -name '*.gguf*' | wc -l)" 18
mkdir "$dir/elsewhere" && ln -s "$dir/elsewhere" "$PITH_MODELS/link" &&
    cp "$dir/m.gguf" "$dir/elsewhere/linked.gguf"
gives rm_by_a_link 2 'outside' rm linked --yes
rm "$PITH_MODELS/link"
(cd "$dir" && printf '[rm]\nname = m-Q8_0\nyes = yes\n' >rm.conf &&
    PITH_YES=1 "$pith" rm --config rm.conf >/dev/null 2>&1)
same rm_takes_no_settings "$?" 1
gives rm 0 '' rm m-Q8_0 --yes
gives rm_ref 0 '' rm hf:some/repo-gguf:q4_k_m -y
gives rm_parts 0 '' rm hf:s/s -y
gives rm_unfinished 0 '' rm u-Q4_0 -y
gives rm_path 0 '' rm "$PITH_MODELS/x/twice.gguf" -y
gives rm_address 0 '' rm https://example.org:8080/a/web.gguf -y
gives rm_ollama 0 '' rm ollama:tiny:1b -y
repo=./hf/some/Repo-GGUF me=./ollama/me/tiny
same rm_leaves "$(cd "$PITH_MODELS" && find . | sort | tr '\n' ' ')" \
    ". ./bad.gguf ./by-hand.gguf ./hf ./hf/some $repo $repo/mmproj-F16.gguf ./ollama ./ollama/me $(
    )$me $me/tiny-latest.gguf ./y ./y/twice.gguf "

# A folder that somebody else has made: links that lead back to it many times over, what is no file,
# names that a terminal would obey.
odd=$dir/odd
put "$odd/a/one.gguf" "$odd/b"$'\n\e[31m\xff'"ad.gguf"
for n in {1..9}; do ln -s . "$odd/$n" && ln -s .. "$odd/a/$n"; done
mkfifo "$odd/pipe.gguf" "$odd/a/pipe.gguf.part"
mkdir "$odd/folder.gguf"
ln -s nowhere "$odd/gone.gguf"
ln -s itself.gguf "$odd/itself.gguf"
export HOME=$dir/nobody PITH_MODELS=$odd
gives odd_folder 0 '^one +[0-9.]+ KiB' list
same odd_files "$(grep -c KiB "$out") $(LC_ALL=C grep -c $'\e' "$out")" "2 0"
gives odd_json 0 '"name": "one"' list --json
for name in pipe folder gone itself; do
    gives "odd_$name" 2 'no model of this name' inspect "$name"
    gives "odd_path_$name" "$([ $name = itself ] && echo 3 || echo 2)" "$name.gguf" \
        inspect "$odd/$name.gguf"
done
finish
