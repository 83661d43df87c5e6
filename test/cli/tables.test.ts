// Tables in and out, from a shell, against the real service before a model server that the test controls.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import { createTable, fileSource, openTable } from '../../src/cli/tables/open-table.ts'
import { cellText, type TableReader } from '../../src/tables/table.ts'
import { tableBytes } from '../../src/tables/table-bytes.ts'
import { offpeak, offpeakUntil } from '../fakes/offpeak.ts'
import { type Call, completion, send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService } from '../service.ts'
import { parsedLines } from '../support/api.ts'

const REVIEWS = [
  'id,text,stars',
  '007,"Good, and ""quick""",5',
  '8,"two\nlines",',
  '9,"",1',
  '10,déjà vu,3',
  '',
].join('\n')

/** Answers with the length of the prompt; a prompt with `bad` is refused. */
function measure({ body, response }: Call): void {
  const prompt = body.messages.at(-1)?.content ?? ''
  if (prompt.includes('bad')) send(response, 400, '{"error":{"message":"no such words here"}}')
  else send(response, 200, completion(`${prompt.length} characters`))
}

describe('a table', { timeout: 60_000 }, () => {
  let upstream: TestUpstream
  let service: TestService
  let root: string
  let folder: string

  before(async () => {
    upstream = await testUpstream(measure)
    service = await TestService.start(configFor(upstream.base_url))
    root = await mkdtemp(join(tmpdir(), 'offpeak-tables-'))
  })
  after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
    await rm(root, { recursive: true })
  })
  beforeEach(async () => {
    folder = await mkdtemp(join(root, 'case-'))
    await writeFile(at('reviews.csv'), REVIEWS)
  })
  afterEach(() => {
    upstream.reply = measure
  })

  const at = (name: string): string => join(folder, name)
  const text = (name: string): Promise<string> => readFile(at(name), 'utf8')
  const run = (input: string, ...more: string[]) =>
    offpeak(service, 'run', at(input), '--model', 'm', ...more)
  const cells = async (table: TableReader): Promise<unknown[][]> => {
    const found: unknown[][] = []
    for await (const row of table.rows()) found.push([...row.cells])
    return found
  }

  test('keeps its columns and the order of its rows, and gets a column of answers', async () => {
    const { code, err, out } = await run('reviews.csv', '--prompt', 'Classify: {{text}}', '-o', at('out.csv'))
    assert.equal(code, 0, err)
    assert.equal(out, '')
    assert.match(err, /table: .*out\.csv \(4 rows\)\n$/)
    assert.equal(
      await text('out.csv'),
      [
        'id,text,stars,answer,error',
        '007,"Good, and ""quick""",5,27 characters,',
        '8,"two\nlines",,19 characters,',
        '9,"",1,10 characters,',
        '10,déjà vu,3,17 characters,',
        '',
      ].join('\n'),
    )
    assert.deepEqual((await readdir(folder)).sort(), ['out.csv', 'out.csv.offpeak-run.json', 'reviews.csv'])
    const repeated = await run('reviews.csv', '--prompt', 'Classify: {{text}}', '-o', at('out.csv'))
    assert.equal(repeated.code, 4)
    assert.match(repeated.err, /--again runs it again/)
  })

  test('asks the model for what the prompt and the parameters say', async () => {
    const first = upstream.calls.length
    const more = ['--system', 'Be brief.', '--param', 'max_tokens=7', '--param', 'user=anna', '--limit', '1']
    const { code, err } = await run('reviews.csv', '--prompt', '{{stars}} stars: {{text}}', ...more)
    assert.equal(code, 0, err)
    assert.deepEqual(
      upstream.calls.slice(first).map(({ body }) => body),
      [
        {
          max_tokens: 7,
          user: 'anna',
          model: 'm',
          messages: [
            { role: 'system', content: 'Be brief.' },
            { role: 'user', content: '5 stars: Good, and "quick"' },
          ],
        },
      ],
    )
    assert.equal((await text('reviews.out.csv')).trimEnd().split('\n').length, 2)
  })

  test('has the reason for each row without an answer in its column of errors', async () => {
    await writeFile(at('mixed.csv'), 'n,text\n1,good\n2,bad\n3,fine\n')
    const { code, err } = await run('mixed.csv', '--prompt', '{{text}}', '-o', at('out.csv'))
    assert.equal(code, 3)
    assert.match(err, /table: .* \(3 rows, 1 without an answer: see the column "error"\)/)
    const lines = (await text('out.csv')).split('\n')
    assert.equal(lines[1], '1,good,4 characters,')
    assert.match(lines[2] ?? '', /^2,bad,,"?\w+: .*no such words here/)
    assert.equal(lines[3], '3,fine,4 characters,')
    const { batch_id } = JSON.parse(await text('out.csv.offpeak-run.json'))
    const read = await offpeak(service, 'results', batch_id, '-o', at('read.csv'))
    assert.equal(read.code, 3, read.err)
  })

  test('is asked about again where rows have no answer, and stays as it is elsewhere', async () => {
    await writeFile(at('mixed.csv'), 'n,text\n1,good\n2,bad\n3,fine\n')
    await run('mixed.csv', '--prompt', '{{text}}', '-o', at('out.csv'))
    const before = (await text('out.csv')).split('\n')
    const begun = upstream.calls.length
    upstream.reply = ({ response }) => send(response, 200, completion('better'))
    const retry = ['run', at('mixed.csv'), '-o', at('out.csv'), '--retry-failed']
    const { code, err } = await offpeak(service, ...retry)
    assert.equal(code, 0, err)
    assert.equal(upstream.calls.length, begun + 1)
    assert.deepEqual((await text('out.csv')).split('\n'), before.with(2, '2,bad,better,'))
    await writeFile(at('mixed.csv'), 'n,text\n1,good\n2,worse\n3,fine\n4,new\n')
    const changed = await offpeak(service, ...retry)
    assert.equal(changed.code, 4)
    assert.match(
      changed.err,
      /mixed\.csv has changed since the last run: row 2 changed, row 4 added\. Nothing was sent/,
    )
  })

  test('in which no row can be answered is written with the reasons, and the exit code is 1', async () => {
    await writeFile(at('x.csv'), 'a\n1\n')
    const { code } = await run('x.csv', '--prompt', '{{a}}', '--param', 'temperature="hot"')
    assert.equal(code, 1)
    assert.match(await text('x.out.csv'), /^a,answer,error\n1,,"?invalid_request: /)
  })

  test('gets a column for each field of the schema, and an error for an answer that breaks it', async () => {
    await writeFile(
      at('schema.json'),
      JSON.stringify({
        type: 'object',
        properties: {
          label: { type: 'string' },
          score: { type: 'integer', maximum: 5 },
          tags: { type: 'array', items: { enum: ['x', 'y'] } },
        },
        required: ['label', 'score', 'tags'],
        additionalProperties: false,
      }),
    )
    const answers: Record<string, string> = {
      a: '{"label":"good","score":5,"tags":["x"]}',
      b: 'I cannot say.',
      c: '{"label":"odd","score":"five","tags":[]}',
      d: '{"label":null}',
      e: '{"label":"good","score":6,"tags":["x","z"]}',
    }
    upstream.reply = ({ body, response }) =>
      send(response, 200, completion(answers[body.messages.at(-1)?.content ?? ''] ?? ''))
    await writeFile(at('x.csv'), 'label\na\nb\nc\nd\ne\n')
    const args = ['--prompt', '{{label}}', '--schema', at('schema.json'), '-o', at('out.jsonl')]
    const refused = await run('x.csv', ...args)
    assert.equal(refused.code, 1)
    assert.match(refused.err, /has a column "label" already; .* --prefix new_/)
    const { code, err } = await run('x.csv', ...args, '--prefix', 'its_')
    assert.equal(code, 3, err)
    const rows = parsedLines(await text('out.jsonl'))
    const none = { its_label: null, its_score: null, its_tags: null }
    assert.deepEqual(rows, [
      { label: 'a', its_label: 'good', its_score: 5, its_tags: ['x'], its_error: null },
      { label: 'b', ...none, its_error: 'not_json: the answer is not a JSON object: I cannot say.' },
      {
        label: 'c',
        ...{ its_label: 'odd', its_score: null, its_tags: [] },
        its_error: 'not_schema: score is "five", not an integer',
      },
      {
        label: 'd',
        ...none,
        its_error: 'not_schema: label is null, not a string; score is missing; tags is missing',
      },
      {
        label: 'e',
        ...{ its_label: 'good', its_score: 6, its_tags: ['x', 'z'] },
        its_error: 'not_schema: score must be <= 5',
      },
    ])
    const { batch_id } = JSON.parse(await text('out.jsonl.offpeak-run.json'))
    await offpeak(service, 'results', batch_id, '-o', at('read.csv'))
    assert.match(await text('read.csv'), /^custom_id,label,score,tags,error,/)
    const format = upstream.calls.at(-1)?.body.response_format
    assert.partialDeepStrictEqual(format, {
      type: 'json_schema',
      json_schema: { name: 'answer', strict: true },
    })
  })

  test('of JSONL rows is written as it was read', async () => {
    const rows = ['{"id": 9007199254740993, "text":"a", "price":1.50}', '{"text":"b","more":{"x":[1]}}']
    await writeFile(at('rows.jsonl'), `${rows.join('\r\n')}\r\n`)
    const { code, err } = await run('rows.jsonl', '--prompt', '{{id}} {{text}} {{more.x}}')
    assert.equal(code, 0, err)
    assert.equal(
      await text('rows.out.jsonl'),
      `${rows[0]?.slice(0, -1)},"answer":"19 characters","error":null}\n${rows[1]?.slice(0, -1)},"answer":"6 characters","error":null}\n`,
    )
  })

  test('can be a Parquet file, and keeps its types', async () => {
    const columns = [
      { name: 'id', type: 'integer' as const },
      { name: 'text', type: 'string' as const },
      { name: 'ok', type: 'boolean' as const },
    ]
    const made = await createTable(at('in.parquet'), 'parquet', columns)
    await made.write({ cells: [9007199254740993n, 'one', true] })
    await made.write({ cells: [2, null, null] })
    await made.end()
    const { code, err } = await run('in.parquet', '--prompt', '{{id}}:{{text}}')
    assert.equal(code, 0, err)
    const table = await openTable(at('in.out.parquet'))
    assert.deepEqual(
      table.columns.map(({ name, type }) => `${name} ${type}`),
      ['id integer', 'text string', 'ok boolean', 'answer string', 'error string'],
    )
    const found = await cells(table)
    assert.deepEqual(
      found.map((row) => row.map((cell) => cell ?? null)),
      [
        [9007199254740993n, 'one', true, '20 characters', null],
        [2n, null, null, '2 characters', null],
      ],
    )
    assert.equal(cellText(found[0]?.[0]), '9007199254740993')
  })

  test('sends images by path and by address, and names the row whose image cannot be read', async () => {
    upstream.reply = ({ body, response }) =>
      send(response, 200, completion(JSON.stringify(body.messages.at(-1)?.content)))
    await writeFile(at('dot.png'), Buffer.from('89504e47', 'hex'))
    await writeFile(
      at('x.tsv'),
      'file\tq\ndot.png\ta\nhttps://example.com/a.jpg\tb\ngone.jpg\tc\n\td\nnotes.txt\te\n',
    )
    const { code, err } = await run('x.tsv', '--prompt', 'See:', '--image', 'file', '-o', at('out.jsonl'))
    assert.equal(code, 3, err)
    const rows = parsedLines<{ answer: string; error: string }>(await text('out.jsonl'))
    const part = { type: 'text', text: 'See:' }
    assert.deepEqual(JSON.parse(rows[0]!.answer), [
      part,
      { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw==' } },
    ])
    assert.deepEqual(JSON.parse(rows[1]!.answer), [
      part,
      { type: 'image_url', image_url: { url: 'https://example.com/a.jpg' } },
    ])
    assert.equal(rows[2]!.error, 'not_sent: there is no image gone.jpg')
    assert.deepEqual([rows[3]!.answer, rows[3]!.error], ['"See:"', null])
    assert.match(rows[4]!.error, /^not_sent: the image notes\.txt is not a \.png/)
  })

  test('that was interrupted is resumed with the same batch', async () => {
    const controller = new AbortController()
    let open = (): void => {}
    upstream.reply = async (call) => {
      controller.abort()
      await new Promise<void>((resolve) => {
        open = resolve
      })
      measure(call)
    }
    const args = ['run', at('reviews.csv'), '--model', 'm', '--prompt', 'Again: {{text}}', '--limit', '1']
    const first = await offpeakUntil(service, controller.signal, ...args)
    assert.equal(first.code, 130, first.err)
    assert.ok(existsSync(at('reviews.out.csv.offpeak-run')))
    upstream.reply = measure
    open()
    const second = await offpeak(service, ...args)
    assert.equal(second.code, 0, second.err)
    const [, batch] = /Resuming the interrupted run \((batch_\w+)\)/.exec(second.err) ?? []
    assert.match(second.err, new RegExp(`${batch} completed: 1 line answered`))
    assert.equal(
      await text('reviews.out.csv'),
      'id,text,stars,answer,error\n007,"Good, and ""quick""",5,24 characters,\n',
    )
    assert.equal(existsSync(at('reviews.out.csv.offpeak-run')), false)
  })

  test('whose rows are empty is not asked about them with --skip-empty', async () => {
    await writeFile(at('gaps.csv'), 'id,text\n1,good\n2,\n3," "\n4,fine\n')
    const before = upstream.calls.length
    const args = ['--prompt', 'Classify: {{text}}', '--skip-empty', '-o', at('out.csv')]
    const { code, err } = await run('gaps.csv', ...args)
    assert.equal(code, 0, err)
    assert.equal(upstream.calls.length, before + 2)
    assert.match(err, /table: .*out\.csv \(4 rows, 2 empty and not asked about\)\n$/)
    const whole = 'id,text,answer,error\n1,good,14 characters,\n2,,,\n3, ,,\n4,fine,14 characters,\n'
    assert.equal(await text('out.csv'), whole)
    const again = await run('gaps.csv', '--retry-failed', '-o', at('out.csv'))
    assert.equal(again.code, 0, again.err)
    assert.equal(upstream.calls.length, before + 2)
    assert.equal(await text('out.csv'), whole)
    await writeFile(at('none.csv'), 'id,text\n1,\n')
    const none = await run('none.csv', '--prompt', '{{text}}', '--skip-empty')
    assert.equal(none.code, 1)
    assert.match(none.err, /every row is empty in the columns of the prompt/)
  })

  test('is estimated without a batch', async () => {
    const before = upstream.calls.length
    const { code, out, err } = await run('reviews.csv', '--prompt', '{{text}}', '--estimate')
    assert.equal(code, 0, err)
    assert.match(out, /^4 lines, about /)
    assert.equal(upstream.calls.length, before)
    assert.deepEqual(await readdir(folder), ['reviews.csv'])
  })

  test('is estimated with the order of its columns in which prompts share most', async () => {
    const rows = Array.from({ length: 50 }, (_, i) => `number ${i},${'the rules '.repeat(9)}${i % 2}`)
    await writeFile(at('rules.csv'), ['text,rules', ...rows, ''].join('\n'))
    const { code, err, out } = await run('rules.csv', '--prompt', '{{text}}, by {{rules}}', '--estimate')
    assert.equal(code, 0, err)
    assert.match(out, /^50 lines/)
    assert.match(
      err,
      /With its columns in the order \{\{rules\}\} \{\{text\}\}, 87 % of the prompts .* as written 0 %\./,
    )
  })

  test('can be prepared, run and read as three steps', async () => {
    const question = ['--model', 'm', '--prompt', 'Classify: {{text}}']
    const prepared = await offpeak(service, 'prepare', at('reviews.csv'), ...question, '-o', at('r.jsonl'))
    assert.equal(prepared.code, 0, prepared.err)
    assert.match(prepared.err, /requests: .*r\.jsonl \(4 lines\)/)
    const ran = await offpeak(service, 'run', at('r.jsonl'), '--json')
    assert.equal(ran.code, 0, ran.err)
    const { batch_id }: { batch_id: string } = JSON.parse(ran.out)
    const results = (...more: string[]) => offpeak(service, 'results', batch_id, ...more)
    const joined = await results('--rows', at('reviews.csv'), '-o', at('joined.csv'))
    assert.equal(joined.code, 0, joined.err)
    assert.match(
      joined.err,
      /note: the requests of batch_\w+ came in r\.jsonl, and the rows are those of .*reviews\.csv;/,
    )
    await run('reviews.csv', '--prompt', 'Classify: {{text}}', '-o', at('whole.csv'))
    assert.equal(await text('joined.csv'), await text('whole.csv'))

    assert.equal((await results('-o', at('plain.csv'))).code, 0)
    assert.equal(
      (await text('plain.csv')).split('\n').slice(0, 2).join('\n'),
      'custom_id,answer,error,input_tokens,output_tokens,cost_usd\nrow-1,27 characters,,10,5,0.000003',
    )
    assert.equal((await results('-o', at('plain'), '--format', 'parquet')).code, 0)
    await rename(at('plain'), at('plain.parquet'))
    assert.equal((await cells(await openTable(at('plain.parquet')))).length, 4)
    await writeFile(at('short.csv'), 'text\nonly one\n')
    const wrong = await results('--rows', at('short.csv'), '-o', at('no.csv'))
    assert.match(wrong.err, /the results do not belong to .*short\.csv: it has no row for the line row-2/)
  })

  const MISTAKES: [name: string, content: string, args: string[], said: RegExp][] = [
    ['x.csv', 'a,b\n1,2\n', ['--prompt', '{{c}}'], /--prompt names the column "c", .*columns are a, b/],
    ['x.csv', 'a,b\n1,2\n', ['--prompt', '{{a}}', '--image', 'c'], /--image names the column "c"/],
    [
      'x.csv',
      'a,b\n1,2\n',
      ['--prompt', '{{#a}}'],
      /--prompt is not a valid template \(Unclosed section "a"/,
    ],
    ['x.csv', 'a,b\n1,2,3\n', ['--prompt', '{{a}}'], /x\.csv, line 2: this row has more or fewer cells/],
    ['x.csv', 'a,b\n"1,2\n', ['--prompt', '{{a}}'], /x\.csv, line 2: a quoted cell does not end/],
    ['x.csv', 'a,b\n1,5" wide\n', ['--prompt', '{{a}}'], /x\.csv, line 2: a quote stands inside a cell/],
    ['x.csv', 'a,b\n1,"2"3\n', ['--prompt', '{{a}}'], /x\.csv, line 2: a quoted cell goes on after/],
    ['x.csv', 'a\n1\n', ['--prompt', '{{a}}', '--param', 'max-tokens=5'], /Did you mean max_tokens\?/],
    ['x.csv', 'a\n1\n', ['--prompt', ' '], /--prompt of "offpeak run" is empty/],
    [
      'x.csv',
      'a\n1\n',
      ['--prompt', '{{a}}', '--model', 'no/such'],
      /is no model "no\/such"; models here are m$/m,
    ],
    ['x.csv', 'a,a\n1,2\n', ['--prompt', '{{a}}'], /two columns named "a"/],
    ['x.csv', '', ['--prompt', '{{a}}'], /x\.csv is empty/],
    ['x.csv', 'a\n', ['--prompt', '{{a}}'], /the table has columns, but no rows/],
    ['x.csv', 'a\n1\n', [], /is a table; say what to ask about each row: --prompt/],
    ['x.jsonl', '{"a":1}\n', [], /holds rows \(with the columns a\), not requests/],
    ['x.jsonl', '{"a":1}\n[2]\n', ['--prompt', '{{a}}'], /x\.jsonl, line 2 is not a JSON object/],
    ['x.jsonl', '{"custom_id":"1","body":{}}\n', ['--prompt', '{{a}}'], /holds requests already/],
    ['x.jsonl', '{"custom_id":"1","body":{}}\n', ['--limit', '1'], /--limit is for tables/],
    ['x.parquet', 'no', ['--prompt', '{{a}}'], /x\.parquet cannot be read as a Parquet file/],
    [
      'x.xlsx',
      'no',
      ['--prompt', '{{a}}'],
      /it has to end with \.csv, \.tsv, \.jsonl \(each also with \.gz or \.zst\) or \.parquet/,
    ],
    ['x.csv', 'a\n1\n', ['--prompt', '{{a}}', '-o', 'out.xls'], /out\.xls does not say a table format/],
    ['x.csv', 'a\n1\n', ['--prompt', '{{a}}', '--param', 'model=x'], /Use --model/],
  ]
  for (const [name, content, args, said] of MISTAKES) {
    test(`with a mistake is refused before anything is sent: ${said.source}`, async () => {
      await writeFile(at(name), content)
      const model = name === 'x.jsonl' && content.includes('custom_id') ? [] : ['--model', 'm']
      const { code, err } = await offpeak(
        service,
        'run',
        at(name),
        ...(args.length > 0 ? model : []),
        ...args,
      )
      assert.equal(code, 1)
      assert.match(err, said)
      assert.deepEqual((await readdir(folder)).sort(), ['reviews.csv', name].sort())
    })
  }

  test('is never replaced by what is made of it', async () => {
    await symlink(at('reviews.csv'), at('link.csv'))
    const asked = ['--prompt', '{{id}}', '-o', at('reviews.csv')]
    for (const { code, err } of [
      await run('reviews.csv', ...asked, '--limit', '1'),
      await run('link.csv', ...asked),
      await offpeak(service, 'prepare', at('reviews.csv'), '--model', 'm', ...asked),
      await offpeak(service, 'results', 'batch_x', '--rows', at('link.csv'), '-o', at('reviews.csv')),
    ]) {
      assert.equal(code, 1)
      assert.match(err, /the output .*reviews\.csv would replace the input; name another file with -o/)
    }
    assert.equal(await text('reviews.csv'), REVIEWS)
    assert.deepEqual((await readdir(folder)).sort(), ['link.csv', 'reviews.csv'])
  })

  test('of tabs may have quotes anywhere', async () => {
    await writeFile(at('free.tsv'), 'id\ttext\n1\t5" wide\n2\t"so" he said\n3\t"a\tb"\n')
    const { err } = await run('free.tsv', '--prompt', '{{text}}', '-o', at('out.csv'))
    assert.match(err, /3 rows/)
    assert.deepEqual((await text('out.csv')).split('\n').slice(1), [
      '1,"5"" wide",7 characters,',
      '2,"""so"" he said",12 characters,',
      '3,a\tb,3 characters,',
      '',
    ])
  })

  test('of UTF-16, of semicolons, with a byte-order mark and CRLF is read as it is', async () => {
    await writeFile(at('utf16.csv'), Buffer.from('\ufeffname\ttext\r\nÖ\t"a\tb"\r\n', 'utf16le'))
    await run('utf16.csv', '--prompt', '{{name}}{{text}}', '-o', at('u.csv'))
    assert.equal(await text('u.csv'), '\ufeffname\ttext\tanswer\terror\r\nÖ\t"a\tb"\t4 characters\t\r\n')
    await writeFile(at('semi.csv'), '\ufeffname;price\r\n"A;B";1,50\r\n')
    await run('semi.csv', '--prompt', '{{name}} {{price}}', '-o', at('s.csv'))
    assert.equal(await text('s.csv'), '\ufeffname;price;answer;error\r\n"A;B";1,50;8 characters;\r\n')
  })

  test('keeps each row one record, whatever line breaks are in its cells', async () => {
    upstream.reply = ({ response }) => send(response, 200, completion('one\ntwo\rthree'))
    await writeFile(at('crlf.csv'), 'id,text\r\n1,"a\nb"\r\n2,"c\rd"\r\n')
    const { code, err } = await run('crlf.csv', '--prompt', '{{text}}', '-o', at('out.csv'))
    assert.equal(code, 0, err)
    assert.equal(
      await text('out.csv'),
      'id,text,answer,error\r\n1,"a\nb","one\ntwo\rthree",\r\n2,"c\rd","one\ntwo\rthree",\r\n',
    )
  })

  test('for a spreadsheet runs nothing, and is read again as it was', async () => {
    upstream.reply = ({ body, response }) =>
      send(response, 200, completion(`=${body.messages.at(-1)?.content}`))
    await writeFile(at('x.csv'), 'n,say\n-5,=1+1\n7,@you\n')
    const first = await run('x.csv', '--prompt', '{{say}}', '--spreadsheet', '-o', at('sheet.csv'))
    assert.equal(first.code, 0, first.err)
    assert.equal(
      await text('sheet.csv'),
      "\ufeffn,say,answer,error\r\n-5,'=1+1,'==1+1,\r\n7,'@you,'=@you,\r\n",
    )
    const args = ['--prompt', '{{answer}}', '--prefix', 'next_', '--spreadsheet', '-o', at('plain.jsonl')]
    const second = await run('sheet.csv', ...args)
    assert.equal(second.code, 0, second.err)
    assert.deepEqual(parsedLines(await text('plain.jsonl')), [
      { n: '-5', say: '=1+1', answer: '==1+1', error: null, next_answer: '===1+1', next_error: null },
      { n: '7', say: '@you', answer: '=@you', error: null, next_answer: '==@you', next_error: null },
    ])
  })

  test('may be compressed, in one piece or several, and a broken one says so', async () => {
    const pieces = [REVIEWS.slice(0, 30), REVIEWS.slice(30)]
    const whole = 'id,text,stars,answer,error\n007,"Good, and ""quick""",5,17 characters,\n'
    for (const [ending, compress] of [
      ['gz', gzipSync],
      ['zst', zstdCompressSync],
    ] as const) {
      const packed = Buffer.concat(pieces.map((piece) => compress(piece)))
      await writeFile(at(`r.csv.${ending}`), packed)
      const { code, err } = await run(
        `r.csv.${ending}`,
        '--prompt',
        '{{text}}',
        '-o',
        at(`${ending}.csv`),
        '--limit',
        '1',
      )
      assert.equal(code, 0, err)
      assert.equal(await text(`${ending}.csv`), whole)
      await writeFile(at(`broken.csv.${ending}`), packed.subarray(0, -9))
      const broken = await run(`broken.csv.${ending}`, '--prompt', '{{text}}')
      assert.equal(broken.code, 1)
      assert.match(
        broken.err,
        /broken\.csv\.\w+ cannot be decompressed \(unexpected end of file\); is it complete/,
      )
      await writeFile(at(`plain.csv.${ending}`), REVIEWS)
      const plain = await run(`plain.csv.${ending}`, '--prompt', '{{text}}')
      assert.match(
        plain.err,
        /plain\.csv\.\w+ cannot be decompressed \(.+\); is it complete, and as its name says/,
      )
    }
    await writeFile(at('rows.jsonl.gz'), gzipSync('{"a":"b"}\n'))
    const rows = await run('rows.jsonl.gz', '--prompt', '{{a}}')
    assert.equal(rows.code, 0, rows.err)
    assert.equal(await text('rows.out.jsonl'), '{"a":"b","answer":"1 characters","error":null}\n')
    const named = await run('rows.jsonl.gz', '--prompt', '{{a}}', '-o', at('out.csv.gz'))
    assert.match(named.err, /a table is not written compressed; name another output than .*out\.csv\.gz/)
  })

  test('of requests may be compressed, too', async () => {
    const body = { model: 'm', messages: [{ role: 'user', content: 'x' }] }
    const line = JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body })
    await writeFile(at('q.jsonl.zst'), zstdCompressSync(`${line}\n`))
    const { code, err } = await offpeak(service, 'run', at('q.jsonl.zst'))
    assert.equal(code, 0, err)
    assert.match(await text('q.out.jsonl'), /"custom_id":"a"/)
    assert.deepEqual(
      (await readdir(folder)).filter((name) => name.includes('offpeak-run')),
      ['q.out.jsonl.offpeak-run.json'],
    )
  })

  test('that expands without end is cut off, in bytes and in what one line takes', async () => {
    await writeFile(at('bomb.csv.zst'), zstdCompressSync(Buffer.alloc(8 * 2 ** 20, 'a\n')))
    await assert.rejects(async () => {
      for await (const block of tableBytes(await fileSource(at('bomb.csv.zst')), 2 ** 20))
        assert.ok(block.length <= 2 ** 18)
    }, /bomb\.csv\.zst expands to more than .* GiB/)
    await writeFile(at('bomb.jsonl.gz'), gzipSync(Buffer.alloc(70 * 2 ** 20, ' '), { level: 1 }))
    const { code, err } = await run('bomb.jsonl.gz', '--prompt', '{{a}}')
    assert.equal(code, 1)
    assert.match(err, /bomb\.jsonl\.gz has a line of more than 64 MiB/)
  })

  test('of UTF-16 that is not read is named as such', async () => {
    const csv = 'name,text\nÖ,one\n'
    const json = '{"name":"Ö"}\n'
    const big = (text: string): Buffer => Buffer.from(text, 'utf16le').swap16()
    const files: [name: string, bytes: Buffer, encoding: string][] = [
      ['little.csv', Buffer.from(csv, 'utf16le'), 'UTF-16LE'],
      ['big.csv', big(csv), 'UTF-16BE'],
      ['little.jsonl', Buffer.from(json, 'utf16le'), 'UTF-16LE'],
      ['marked.jsonl', Buffer.from(`\ufeff${json}`, 'utf16le'), 'UTF-16LE'],
      ['marked-big.jsonl', big(`\ufeff${json}`), 'UTF-16BE'],
    ]
    for (const [name, bytes, encoding] of files) {
      await writeFile(at(name), bytes)
      const { code, err } = await run(name, '--prompt', '{{name}}')
      assert.equal(code, 1)
      const said = `${name} is UTF-16; save it as UTF-8, for example with: iconv -f ${encoding} -t UTF-8 `
      assert.ok(err.includes(said), err)
    }
    await writeFile(at('marked-big.csv'), big(`\ufeff${csv}`))
    assert.equal((await run('marked-big.csv', '--prompt', '{{name}}', '-o', at('u.csv'))).code, 0)
    assert.equal(await text('u.csv'), '\ufeffname,text,answer,error\nÖ,one,1 characters,\n')
  })

  test('with a row that nests too deeply to be printed is refused with the number of its line', async () => {
    await writeFile(at('deep.jsonl'), `{"a":1}\n{"a":${'['.repeat(50_000)}${']'.repeat(50_000)}}\n`)
    const { code, err } = await run('deep.jsonl', '--prompt', '{{a}}')
    assert.equal(code, 1)
    assert.match(err, /deep\.jsonl, line 2 nests deeper than 100 levels/)
  })

  test('that is not UTF-8 is refused rather than damaged', async () => {
    await writeFile(at('latin.csv'), Buffer.from('name\nJos\xe9\n', 'latin1'))
    const { code, err } = await run('latin.csv', '--prompt', '{{name}}')
    assert.equal(code, 1)
    assert.match(err, /is not UTF-8 text .*iconv -f WINDOWS-1252/)
  })
})
