// NumPy's random numbers: PCG64 seeded by a SeedSequence, bit for bit.
// So a seed of this page shows the start states and the blank frames that the Python environments
// show for the same seed.

const POOL_SIZE = 4;
const MASK_64 = (1n << 64n) - 1n;
const MASK_128 = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

const product = (a, b) => Math.imul(a, b) >>> 0;
const folded = (x) => (x ^ (x >>> 16)) >>> 0;

/** A hash whose constant changes with each use, as NumPy's SeedSequence has two of them. */
function hashing(first, multiplier) {
  let constant = first;
  return (value) => {
    const mixed = (value ^ constant) >>> 0;
    constant = product(constant, multiplier);
    return folded(product(mixed, constant));
  };
}

const combined = (x, y) => folded((product(0xca01f9dd, x) - product(0x4973f715, y)) >>> 0);

/** Words of 32 bits that a seed and a spawn key are mixed into. */
function pool(words) {
  const hash = hashing(0x43b0d7e5, 0x931e8875);
  const mixed = Array.from({ length: POOL_SIZE }, (_, i) => hash(words[i] ?? 0));
  for (let from = 0; from < POOL_SIZE; from++)
    for (let to = 0; to < POOL_SIZE; to++)
      if (from !== to) mixed[to] = combined(mixed[to], hash(mixed[from]));
  for (const word of words.slice(POOL_SIZE))
    for (let to = 0; to < POOL_SIZE; to++) mixed[to] = combined(mixed[to], hash(word));
  return mixed;
}

/** Whole numbers of 64 bits made of a pool. */
function generated(mixed, count) {
  const hash = hashing(0x8b51f9dd, 0x58f38ded);
  const words = Array.from({ length: 2 * count }, (_, i) => BigInt(hash(mixed[i % POOL_SIZE])));
  return Array.from({ length: count }, (_, i) => words[2 * i] | (words[2 * i + 1] << 32n));
}

/** A stream of uniform numbers from [0, 1): np.random.default_rng(SeedSequence(seed, spawn_key)). */
export class Stream {
  /** seed: a whole number below 2^32; spawnKey: likewise */
  constructor(seed, spawnKey = []) {
    // NumPy fills a seed up to the pool's size only where a spawn key follows.
    const words = spawnKey.length ? [seed, 0, 0, 0, ...spawnKey] : [seed];
    const [high, low, sequenceHigh, sequenceLow] = generated(pool(words), 4);
    this.increment = ((((sequenceHigh << 64n) | sequenceLow) << 1n) | 1n) & MASK_128;
    this.state = 0n;
    this.advance();
    this.state = (this.state + ((high << 64n) | low)) & MASK_128;
    this.advance();
  }

  advance() {
    this.state = (this.state * MULTIPLIER + this.increment) & MASK_128;
  }

  next() {
    this.advance();
    const turned = (this.state >> 64n) ^ (this.state & MASK_64);
    const by = this.state >> 122n;
    const bits = ((turned >> by) | (turned << (64n - by))) & MASK_64;
    return Number(bits >> 11n) / 2 ** 53;
  }
}
