"""Four sandboxes in parallel, with asyncio."""

import asyncio

from sandfarm import AsyncClient


async def primes(client: AsyncClient, first: int) -> int:
    code = f"sum(all(n % d for d in range(2, int(n ** .5) + 1)) for n in range({max(first, 2)}, {first + 1000}))"
    result = await client.run(code, timeout=60, check=True)
    return int(result.results[0].text)


async def main() -> None:
    async with AsyncClient() as client:
        counts = await asyncio.gather(*(primes(client, first) for first in range(0, 4000, 1000)))
    print(sum(counts), "primes below 4000")


asyncio.run(main())
