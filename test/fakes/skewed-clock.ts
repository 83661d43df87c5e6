// For `node --import`: gives the process a clock skew of OFFPEAK_TEST_CLOCK_OFF_MS. SIGUSR2 reverses its sign.
let off_ms = Number(process.env.OFFPEAK_TEST_CLOCK_OFF_MS ?? 0)
process.on('SIGUSR2', () => {
  off_ms = -off_ms
})
const rightNow = Date.now
Date.now = () => rightNow() + off_ms
globalThis.Date = new Proxy(Date, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length === 0 ? [target.now()] : args, newTarget),
})
