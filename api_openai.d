api_openai.o: server/api/api_openai.c server/api/api.h \
  server/api/routes.def server/http/exchange.h server/json.h \
  include/pith.h include/pith/core.h include/pith/file.h \
  include/pith/model.h include/pith/text.h include/pith/session.h \
  include/pith/sample.h include/pith/generate.h server/unconst.h \
  server/hosted.h server/server.h server/request/answer.h \
  server/request/fields.h server/fields.def src/run/sample/samplers.def \
  server/request/message.h server/request/request.h \
  server/schedule/scheduler.h server/http/account.h server/http/auth.h \
  server/request/functions.h server/request/tools.h

server/api/api.h:

server/api/routes.def:

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

server/hosted.h:

server/server.h:

server/request/answer.h:

server/request/fields.h:

server/fields.def:

src/run/sample/samplers.def:

server/request/message.h:

server/request/request.h:

server/schedule/scheduler.h:

server/http/account.h:

server/http/auth.h:

server/request/functions.h:

server/request/tools.h:
