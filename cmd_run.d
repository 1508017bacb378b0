cmd_run.o: cli/commands/cmd_run.c cli/chat/chat.h include/pith.h \
  include/pith/core.h include/pith/file.h include/pith/model.h \
  include/pith/text.h include/pith/session.h include/pith/sample.h \
  include/pith/generate.h cli/cli.h cli/args/args.h cli/commands.def \
  src/run/sample/samplers.def cli/sampler_rows.def

cli/chat/chat.h:

include/pith.h:

include/pith/core.h:

include/pith/file.h:

include/pith/model.h:

include/pith/text.h:

include/pith/session.h:

include/pith/sample.h:

include/pith/generate.h:

cli/cli.h:

cli/args/args.h:

cli/commands.def:

src/run/sample/samplers.def:

cli/sampler_rows.def:
