/** One page of a list. */
export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

/** A list of the farm, newest first. Iterating over it fetches pages as they are needed. */
export class List<T> implements AsyncIterable<T> {
  readonly #fetch: (cursor?: string) => Promise<Page<T>>;

  constructor(fetch: (cursor?: string) => Promise<Page<T>>) {
    this.#fetch = fetch;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page.items;
  }

  /** The pages. */
  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    for (let cursor: string | undefined; ; ) {
      const page = await this.#fetch(cursor);
      yield page;
      if (!page.next_cursor || page.next_cursor === cursor) return;
      cursor = page.next_cursor;
    }
  }

  /** The items in an array: all, or the first ones. */
  async toArray(most = Infinity): Promise<T[]> {
    const out: T[] = [];
    if (most <= 0) return out;
    for await (const item of this) if (out.push(item) >= most) break;
    return out;
  }
}
