// The code interpreter of @e2b/code-interpreter.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'

let box
before(async () => { box = await Sandbox.create({ timeoutMs: 300_000 }) })
after(async () => { await box.kill() })

test('output, results and errors', async () => {
  const lines = []
  const ran = await box.runCode("print('out')\nkept = 41\nkept + 1", { onStdout: (m) => lines.push(m.line) })
  assert.deepEqual(lines, ['out\n'])
  assert.deepEqual(ran.logs.stdout, ['out\n'])
  assert.equal(ran.text, '42')
  assert.equal(ran.error, undefined)
  const failed = await box.runCode('1/0')
  assert.equal(failed.error.name, 'ZeroDivisionError')
  assert.ok(failed.executionCount > ran.executionCount)
})

test('charts and tables', async () => {
  const { results } = await box.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='l'); plt.show()")
  assert.ok(results[0].png.startsWith('iVBORw0KGgo'))
  assert.equal(results[0].chart.type, 'line')
  assert.deepEqual(results[0].chart.elements[0].points, [[1, 3], [2, 4]])
  const table = await box.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
  assert.deepEqual(table.results[0].data, { a: [1, 2] })
})

test('contexts', async () => {
  const context = await box.createCodeContext({ cwd: '/home/user' })
  await box.runCode('x = 1', { context })
  assert.equal((await box.runCode('x', { context })).text, '1')
  assert.equal((await box.runCode('x')).error.name, 'NameError')
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('x', { context })).error.name, 'NameError')
  await box.removeCodeContext(context)
  assert.ok(!(await box.listCodeContexts()).some((c) => c.id === context.id))
  await assert.rejects(box.runCode('1', { context }))
})

test('code stops when its caller leaves', async () => {
  await assert.rejects(box.runCode('import time\nwhile True: time.sleep(0.01)', { timeoutMs: 2000 }), { name: 'TimeoutError' })
  assert.equal((await box.runCode('1 + 1', { timeoutMs: 60_000 })).text, '2')
})
