// next-round: makes the input of the next batch of a tool loop from the output of the last one.
import { createReadStream, createWriteStream } from 'node:fs'
import { rm } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import type { Command } from 'commander'
import type { Shell } from '../shell.ts'
import { counted } from '../terminal/format.ts'
import { examples } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeData, writeLine } from '../terminal/terminal.ts'
import { nextRound, readToolResults, readTurns } from './tool-round.ts'

interface NextRoundFlags {
  input?: string
  tools?: string
  output?: string
}

export function addNextRound(program: Command, shell: Shell): void {
  const { stdout, stderr } = shell.terminal
  const command = program
    .command('next-round')
    .description('make the input of the next round of a tool loop; without --tools, list the tool calls')
    .argument('<output>', 'the output file of the last batch')
    .option('--input <file>', 'the input file of the last batch')
    .option('--tools <file>', 'the results of the tools: JSONL with custom_id, tool_call_id and content')
    .option('-o, --output <file>', 'file for the next input (default: standard output)')
    .action(async (path: string, flags: NextRoundFlags) => {
      const turns = await readTurns(createReadStream(path))
      if (flags.tools === undefined || flags.input === undefined) {
        if (flags.tools !== undefined) command.error('error: --tools needs --input')
        for (const { calls } of turns.values()) for (const call of calls) printJson(stdout, call)
        return
      }
      const results = await readToolResults(createReadStream(flags.tools))
      const lines = nextRound(createReadStream(flags.input), turns, results)
      if (flags.output === undefined) await writeData(stdout, lines)
      else await writeWhole(lines, flags.output)
      writeLine(stderr, `offpeak: ${counted(turns.size, 'line')} for the next round`)
    })
  examples(
    command,
    'offpeak next-round out.jsonl > calls.jsonl',
    'offpeak next-round out.jsonl --input in.jsonl --tools answers.jsonl -o next.jsonl',
  )
}

/** Deletes an incomplete file: nobody would notice that lines are missing from it. */
async function writeWhole(lines: AsyncIterable<Buffer>, path: string): Promise<void> {
  try {
    await pipeline(lines, createWriteStream(path))
  } catch (error) {
    await rm(path, { force: true })
    throw error
  }
}
