// Node's HTTP module. To import it as an ES module is to read all its exports, WebSocket among them, which loads Node's
// fetch: 16 MiB that nothing here needs.
export const http = process.getBuiltinModule('node:http')
