// Package budget limits the bytes that a process holds in memory for its callers: request bodies, answers, frames, buffers of uploads.
//
// A process has one Budget. Whoever is about to hold bytes for a tenant acquires them first and releases the Hold afterwards:
//
//	hold, err := memory.Acquire(ctx, tenant, size)
//	if err != nil {
//		return err
//	}
//	defer hold.Release()
//
// The API gives each request a Hold of its own in its context (With); code below adds to it with Charge and gives it back early with
// Keep.
//
// Guarantees: the sum of all holds never exceeds the size of the budget, and that of one tenant never exceeds half of it. Requests of
// one tenant are granted in the order in which they came; tenants take turns. An eighth of the budget is kept for small requests, so that
// large ones do not delay them. A request waits for ever only if holds are never released.
//
// Rules for users, so that nothing deadlocks: acquire the most that is needed, once, and give back what is not needed (Hold.Keep). Do
// not wait for memory while a Hold is held whose release depends on it: use Hold.Grow or TryAcquire, which do not wait, and spill to
// S3 or refuse where they do.
package budget
