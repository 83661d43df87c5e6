// Loads Node's HTTP module without Node's fetch. An ES import would read all exports, WebSocket among them, which loads
// fetch: 16 MiB that the service does not need.
export const http = process.getBuiltinModule('node:http')
