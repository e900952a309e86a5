// What the JavaScript SDK does differently from Python's: streams of watches, other classes of errors, other forms of uploads.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'

import * as sdk from 'e2b'

// That of a year ago is no ES module, and has no FileNotFoundError.
const { AuthenticationError, CommandExitError, FileNotFoundError, FileType, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError } = { ...sdk, ...sdk.default }

let sandbox
before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { door: 'js' }, envs: { FRUIT: 'apple' } })
})
after(() => sandbox?.kill())

test('commands', async () => {
  const done = await sandbox.commands.run('echo $FRUIT; echo problem >&2')
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['apple\n', 'problem\n', 0])
  await assert.rejects(sandbox.commands.run('exit 7'), (e) => e instanceof CommandExitError && e.exitCode === 7)
  await assert.rejects(sandbox.commands.run('sleep 100', { timeoutMs: 1000 }), TimeoutError)
  const handle = await sandbox.commands.run('read line; echo got $line', { background: true, stdin: true })
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === handle.pid))
  await sandbox.commands.sendStdin(handle.pid, 'this\n')
  assert.equal((await handle.wait()).stdout, 'got this\n')
  const sleeper = await sandbox.commands.run('sleep 100', { background: true })
  assert.equal(await sandbox.commands.kill(sleeper.pid), true)
  assert.equal(await sandbox.commands.kill(sleeper.pid), false)
})

test('terminal', async () => {
  let seen = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { seen += new TextDecoder().decode(data) } })
  await sandbox.pty.resize(terminal.pid, { cols: 91, rows: 31 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
  await terminal.wait()
  assert.match(seen, /31 91/)
})

test('files', async () => {
  const written = await sandbox.files.write('js/a.txt', 'grün')
  assert.equal(written.path, '/home/user/js/a.txt')
  assert.equal(await sandbox.files.read('js/a.txt'), 'grün')
  const blob = new Blob([new Uint8Array([0, 255])])
  await sandbox.files.write([{ path: 'js/b', data: blob }, { path: 'js/c', data: 'c' }])
  assert.deepEqual([...(await sandbox.files.read('js/b', { format: 'bytes' }))], [0, 255])
  assert.deepEqual((await sandbox.files.list('js')).map((e) => [e.name, e.type]), [['a.txt', FileType.FILE], ['b', FileType.FILE], ['c', FileType.FILE]])
  assert.equal((await sandbox.files.rename('js/c', 'js/d')).path, '/home/user/js/d')
  assert.equal(await sandbox.files.makeDir('js/e'), true)
  assert.equal(await sandbox.files.makeDir('js/e'), false)
  await sandbox.files.remove('js/d')
  assert.equal(await sandbox.files.exists('js/d'), false)
  await assert.rejects(sandbox.files.read('js/none'), (e) => e instanceof NotFoundError || e instanceof FileNotFoundError)
  await assert.rejects(sandbox.files.read('js'), InvalidArgumentError)
})

test('watch', async () => {
  await sandbox.files.makeDir('seen')
  const events = []
  let wake
  const written = new Promise((resolve) => { wake = resolve })
  const watch = await sandbox.files.watchDir('seen', (e) => {
    events.push(e)
    if (e.type === 'write') wake()
  })
  await sandbox.files.write('seen/new', 'x')
  await written
  assert.deepEqual([events[0].name, events[0].type], ['new', 'create'])
  await watch.stop()
})

test('control', async () => {
  const info = await sandbox.getInfo()
  assert.equal(info.metadata.door, 'js')
  const listed = await Sandbox.list({ query: { metadata: { door: 'js' } } }).nextItems()
  assert.ok(listed.some((s) => s.sandboxId === sandbox.sandboxId))
  await sandbox.setTimeout(200_000)
  assert.equal(await sandbox.isRunning(), true)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo $FRUIT')).stdout, 'apple\n')
  await assert.rejects(Sandbox.create('no-such-template'), SandboxError)
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_0123' }), AuthenticationError)
  const other = await Sandbox.create({ timeoutMs: 60_000 })
  const sleeper = await other.commands.run('sleep 100', { background: true })
  const old = FileNotFoundError === undefined // its kill says nothing
  assert.equal(await other.kill(), old ? undefined : true)
  await assert.rejects(sleeper.wait())
  assert.equal(await other.isRunning(), false)
  assert.equal(await other.kill(), old ? undefined : false)
})

test('metrics and signed URLs', async () => {
  const [now] = await sandbox.getMetrics()
  assert.ok(now.memUsed > 0 && now.memUsed <= now.memTotal && now.diskTotal > 0, JSON.stringify(now))
  await sandbox.files.write('url/ä b.txt', 'content')
  const answer = await fetch(await sandbox.downloadUrl('url/ä b.txt', { useSignatureExpiration: 600 }))
  assert.equal(await answer.text(), 'content')
  const late = await fetch(await sandbox.downloadUrl('url/ä b.txt', { useSignatureExpiration: -10 }))
  assert.equal(late.status, 401)
  assert.deepEqual(await late.json(), { code: 401, message: 'signature is already expired' })
  const form = new FormData()
  form.append('file', 'sent')
  assert.equal((await fetch(await sandbox.uploadUrl('url/sent.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('url/sent.txt'), 'sent')
})
