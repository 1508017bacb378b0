grammar.o: cli/grammar.c cli/cli.h include/pith.h include/pith/core.h \
  include/pith/file.h include/pith/model.h include/pith/text.h \
  include/pith/session.h include/pith/sample.h include/pith/generate.h \
  cli/args/args.h cli/commands.def src/run/sample/samplers.def

cli/cli.h:

include/pith.h:

include/pith/core.h:

include/pith/file.h:

include/pith/model.h:

include/pith/text.h:

include/pith/session.h:

include/pith/sample.h:

include/pith/generate.h:

cli/args/args.h:

cli/commands.def:

src/run/sample/samplers.def:
