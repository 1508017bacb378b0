fields.o: server/request/fields.c server/http/exchange.h server/json.h \
  include/pith.h include/pith/core.h include/pith/file.h \
  include/pith/model.h include/pith/text.h include/pith/session.h \
  include/pith/sample.h include/pith/generate.h server/unconst.h \
  server/http/work.h server/request/fields.h server/fields.def \
  src/run/sample/samplers.def server/parts.h server/server.h

server/http/exchange.h:

server/json.h:

include/pith.h:

include/pith/core.h:

include/pith/file.h:

include/pith/model.h:

include/pith/text.h:

include/pith/session.h:

include/pith/sample.h:

include/pith/generate.h:

server/unconst.h:

server/http/work.h:

server/request/fields.h:

server/fields.def:

src/run/sample/samplers.def:

server/parts.h:

server/server.h:
