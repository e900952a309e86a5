/*
Package kernel runs code. Python runs in kernels: processes that keep variables between executions (launcher.py). Other languages run in
a fresh process for each execution. All access to kernels is through Kernels.

# The life of a cell

A worker starts an execution and reads its frames by one HTTP request on a yamux session (package client). In the agent:

 1. PUT /v1/executions/{id}: the goroutine of the request checks the spec (Kernels.Check), makes the execution with its log, and starts a
    goroutine that runs it (server.run). Then it waits for frames in the log, which are the answer; those of short code are sent at once.
 2. The running goroutine waits for its turn: one execution of a context at a time (slot.turn, in order of arrival). It starts a kernel if
    none runs, and waits until that is ready.
 3. It makes the execution current and writes the message execute to the kernel's control socket: a socket pair, of which the kernel
    inherited one end as descriptor 3. A second goroutine enforces the timeout (Execution.Watch).
 4. In the kernel, the asyncio loop of the main thread reads the message. The coroutine serve makes two pipes, puts their write ends on
    descriptors 1 and 2 and behind sys.stdout and sys.stderr, and sends the read ends with the message begin. IPython's shell compiles
    and runs the cell: at once, or as a task of the loop if the cell awaits anything.
 5. The goroutine that reads the control socket in the agent (follow) opens the two read ends anew, non-blocking, and starts a pump for
    each: a goroutine that copies the pipe into the log as frames. If the log is full because nobody reads it, the pump waits, the pipe
    fills, and the code waits in write(2). Interrupts are SIGINT, sent only between begin and the reply.
 6. A displayed value goes over the control socket. The kernel first flushes its buffers. The agent empties the pipes, appends
    the value to the log, and answers shown; until then the thread that displayed it waits. So the order of output and values is kept.
 7. After the cell the kernel flushes what the code and C libraries have buffered, closes its ends of the pipes, puts /dev/null on
    descriptors 1 and 2, and sends the reply. Later output of the cell's threads is dropped; processes that it left keep the pipes.
 8. follow passes the reply to the running goroutine. That empties the pipes itself; from then on the pumps discard. It ends the
    watcher, notes changed files (server.measured), and appends the final frame, which ends the frames of the reader.

If the kernel ends before it replies, the outcome is KernelDied, and the next execution starts a new kernel.

# Threads and descriptors of a kernel

The main thread runs the loop and the code. The thread sandfarm-flusher writes lines that came in quick succession. Descriptors: 0 is
/dev/null; 1 and 2 are the pipes of the execution; 3 is the control socket, which children do not inherit; one is /dev/null; the loop
has three of its own (epoll and its wake-up pair).

# Messages

A message is a length of 4 bytes, big endian, then JSON. To the kernel: execute; shown; ask, with a kind and a number; input, the answer to an input_request. From it: ready, once;
begin, with two descriptors; display and clear, with a number that shown repeats; reply; answer, with the number of the question;
message, which is for notebooks and belongs to no execution's output. The kernel is untrusted: what breaks these rules ends it, and messages are bounded.
*/
package kernel
