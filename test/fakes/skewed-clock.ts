// For `node --import`: the process takes its machine for one whose clock is off by OFFPEAK_TEST_CLOCK_OFF_MS.
// SIGUSR2 sets the clock, while the process runs, to be as far off the other way.
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
