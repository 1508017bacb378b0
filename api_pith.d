api_pith.o: server/api/api_pith.c server/api/api.h server/api/routes.def \
  server/http/account.h server/http/auth.h include/pith.h \
  include/pith/core.h include/pith/file.h include/pith/model.h \
  include/pith/text.h include/pith/session.h include/pith/sample.h \
  include/pith/generate.h server/json.h server/unconst.h server/server.h \
  server/http/exchange.h server/http/route.h server/hosted.h \
  server/models/models.h server/request/answer.h server/request/fields.h \
  server/fields.def src/run/sample/samplers.def server/request/message.h \
  server/request/request.h server/schedule/scheduler.h \
  server/request/settings.h server/serve.h

server/api/api.h:

server/api/routes.def:

server/http/account.h:

server/http/auth.h:

include/pith.h:

include/pith/core.h:

include/pith/file.h:

include/pith/model.h:

include/pith/text.h:

include/pith/session.h:

include/pith/sample.h:

include/pith/generate.h:

server/json.h:

server/unconst.h:

server/server.h:

server/http/exchange.h:

server/http/route.h:

server/hosted.h:

server/models/models.h:

server/request/answer.h:

server/request/fields.h:

server/fields.def:

src/run/sample/samplers.def:

server/request/message.h:

server/request/request.h:

server/schedule/scheduler.h:

server/request/settings.h:

server/serve.h:
