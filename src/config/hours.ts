// How the configuration writes opening hours: days of the week, times of the day, a time zone.
import { type HoursWindow, isTimeZone } from '../domain/hours.ts'
import { integer, text } from './scalars.ts'
import { byDefault, checked, optional, type Shape, scalar, section } from './shape.ts'

const DAYS = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun']
const DAYS_SCHEMA = text(
  /^(daily|(mon|tue|wed|thu|fri|sat|sun)([-,] ?(mon|tue|wed|thu|fri|sat|sun))*)$/,
  'days such as mon-fri, sat or "mon,wed", or daily',
)
const TIME = text(/^([01]\d|2[0-3]):[0-5]\d$|^24:00$/, 'a time of the day in quotes, "00:00" to "24:00"')

const TIMEZONE: Shape<string> = checked(
  text(/^[A-Za-z][A-Za-z0-9_+/-]*$/, 'the name of a time zone such as Europe/Berlin'),
  (name, problem) => {
    if (!isTimeZone(name)) problem([], `${name} is no time zone; expected a name such as Europe/Berlin`)
  },
)

const WINDOW = section({
  days: byDefault(
    'daily',
    scalar(DAYS_SCHEMA, 'days such as mon-fri, sat or "mon,wed", or daily', ['string'], daysOf),
  ),
  from: byDefault('00:00', scalar(TIME, 'a time such as "20:00"', ['string'], minutesOf)),
  to: byDefault('24:00', scalar(TIME, 'a time such as "07:00"', ['string'], minutesOf)),
  timezone: byDefault('UTC', TIMEZONE),
  concurrency_max: optional(integer(0)),
})

export const HOURS_WINDOW: Shape<HoursWindow> = checked(WINDOW, ({ from }, problem) => {
  if (from === 1440) problem(['from'], 'expected a time before "24:00"')
})

/** ISO numbers of the days, 1 for Monday; undefined for what names none. */
function daysOf(found: string): number[] | undefined {
  if (found === 'daily') return [1, 2, 3, 4, 5, 6, 7]
  const days = new Set<number>()
  for (const part of found.split(',')) {
    const [first = -1, last = first, ...rest] = part.split('-').map((day) => DAYS.indexOf(day.trim()))
    if (first === -1 || last === -1 || rest.length > 0) return undefined
    for (let day = first; ; day = (day + 1) % 7) {
      days.add(day + 1)
      if (day === last) break
    }
  }
  return [...days].sort()
}

function minutesOf(found: string): number | undefined {
  const match = /^(\d\d):(\d\d)$/.exec(found)
  if (!match) return undefined
  const minutes = Number(match[1]) * 60 + Number(match[2])
  return minutes <= 1440 && Number(match[2]) < 60 ? minutes : undefined
}
