//! [`Rng`], a small generator of pseudo-random numbers.
//!
//! All random choices in tests, benchmarks and simulations come from it, and so do those of production code that need
//! not be secret (probabilities, backoff). So a seed reproduces a run.

/// Mixes the bits of `x` with a bijection (the finalizer of SplitMix64).
#[must_use]
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A small deterministic random number generator (SplitMix64). A seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. Every seed is equally good.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns the next 64 random bits.
    pub fn draw(&mut self) -> u64 {
        let out = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        out
    }

    /// Returns a random number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }

    /// Returns `true` with probability 1 / `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns an independent generator for `purpose`. This generator does not change.
    #[must_use]
    pub fn fork(&self, purpose: u64) -> Rng {
        Rng(mix(self.0 ^ mix(purpose)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut rng = Rng::new(0);
        let drawn = [rng.draw(), rng.draw(), rng.draw()];
        assert_eq!(
            drawn,
            [
                0xe220_a839_7b1d_cdaf,
                0x6e78_9e6a_a1b9_65f4,
                0x06c4_5d18_8009_454f
            ]
        );
    }

    #[test]
    fn a_fork_does_not_change_its_origin() {
        let mut rng = Rng::new(7);
        let mut same = rng.clone();
        let mut forked = rng.fork(1);
        assert_ne!(forked.draw(), rng.draw());
        same.draw();
        assert_eq!(rng.draw(), same.draw());
    }
}
