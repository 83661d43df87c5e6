// Vectors and scores of simulated models: they follow from the model and the text alone.
import { hash } from 'node:crypto'
import { randomOfHash } from './seeded-random.ts'

/** The digits of a 32-bit float. */
const DIGITS = 7

/** A unit vector. */
export function vectorOf(model: string, text: string, dimensions: number): Float32Array<ArrayBuffer> {
  const random = randomOfHash(hash('sha256', `${model}\n${text}`, 'hex'))
  const vector = new Float32Array(dimensions)
  let squares = 0
  for (let i = 0; i < dimensions; i++) {
    const value = random.fraction() - random.fraction()
    vector[i] = value
    squares += value * value
  }
  const length = Math.sqrt(squares) || 1
  for (let i = 0; i < dimensions; i++) vector[i]! /= length
  return vector
}

export function vectorJson(vector: Float32Array): string {
  return `[${Array.from(vector, (value) => Number(value.toPrecision(DIGITS))).join(',')}]`
}

/** From 0 to 1: what the texts share of their words, with a little that is theirs alone. */
export function scoreOf(model: string, query: string, document: string): number {
  const wanted = new Set(query.toLowerCase().split(/\W+/).filter(Boolean))
  const words = new Set(document.toLowerCase().split(/\W+/).filter(Boolean))
  const shared = [...wanted].filter((word) => words.has(word)).length
  const own = randomOfHash(hash('sha256', `${model}\n${query}\n${document}`, 'hex')).fraction()
  const score = (0.9 * shared) / Math.max(1, wanted.size) + 0.1 * own
  return Number(score.toPrecision(DIGITS))
}
