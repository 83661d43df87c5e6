// Whole numbers of 8 bytes arrive as numbers: money, times, sizes and counts all fit, and one that does not
// is a fault that must not pass for another number.
import { type CustomTypesConfig, types } from 'pg'

const INT8 = types.builtins.INT8
/** What PostgreSQL makes of a sum over INT8. */
const NUMERIC = types.builtins.NUMERIC

export const numberTypes: CustomTypesConfig = {
  getTypeParser(oid, format) {
    if ((oid === INT8 || oid === NUMERIC) && format !== 'binary') return safeNumber
    return types.getTypeParser(oid, format)
  },
}

/** Throws a RangeError where a number could not hold every digit. */
function safeNumber(text: string): number {
  const value = Number(text)
  if (Number.isInteger(value) ? !Number.isSafeInteger(value) : String(value) !== text)
    throw new RangeError(`the database holds ${text}, which is more than a number can hold exactly`)
  return value
}
