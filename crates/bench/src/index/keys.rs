//! PiBench's key generator, reproduced bit for bit: the sequence of ids, and the key of an id.
//!
//! PiBench draws from C++'s `std::default_random_engine`, which in libstdc++ is a multiplicative generator with 31
//! bits, and from that library's distributions. The same seed gives the same keys here, so a table gets the same
//! operations as in the published runs. Skewed draws follow Gray et al., "Quickly Generating Billion-Record Synthetic
//! Databases", SIGMOD 1994.

/// libstdc++'s `std::default_random_engine`: x · 16807 modulo 2³¹ - 1.
#[derive(Clone, Debug)]
pub struct MinStdEngine(u64);

impl MinStdEngine {
    const MODULUS: u64 = (1 << 31) - 1;
    /// Largest minus smallest number that it draws; it draws 1 to 2³¹ - 2.
    const RANGE: u64 = MinStdEngine::MODULUS - 2;

    /// Creates a generator. As in C++, seed 0 stands for 1.
    #[must_use]
    pub fn new(seed: u64) -> MinStdEngine {
        MinStdEngine((seed % MinStdEngine::MODULUS).max(1))
    }

    /// Returns the next number, at least 1.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % MinStdEngine::MODULUS;
        self.0
    }

    /// Returns a uniform number from 0 to `most` inclusive, like `std::uniform_int_distribution`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        if most == MinStdEngine::RANGE {
            return self.draw() - 1;
        }
        if most < MinStdEngine::RANGE {
            let scale = MinStdEngine::RANGE / (most + 1);
            let past = (most + 1) * scale;
            loop {
                let drawn = self.draw() - 1;
                if drawn < past {
                    return drawn / scale;
                }
            }
        }
        // The digits of the number in base RANGE + 1, the highest first.
        let base = MinStdEngine::RANGE + 1;
        loop {
            let high = base.wrapping_mul(self.up_to(most / base));
            let number = high.wrapping_add(self.draw() - 1);
            if number <= most && number >= high {
                return number;
            }
        }
    }

    /// Returns a number in [0, 1), like `std::generate_canonical` with 53 bits.
    pub fn canonical(&mut self) -> f64 {
        let base = (MinStdEngine::RANGE + 1) as f64;
        let low = (self.draw() - 1) as f64;
        let high = (self.draw() - 1) as f64;
        let number = (low + high * base) / (base * base);
        if number < 1.0 {
            number
        } else {
            1.0_f64.next_down()
        }
    }
}

/// Distribution of ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform.
    Uniform,
    /// Self-similar with skew s: the first share s of the ids is drawn with probability 1 - s.
    SelfSimilar(f64),
    /// Zipfian, with this exponent, below 1.
    Zipfian(f64),
}

/// Generator of ids from 1 to `count`.
#[derive(Clone, Debug)]
pub struct IdGenerator {
    count: u64,
    distribution: Distribution,
    /// For the Zipfian distribution: the sum over all ids.
    zeta: f64,
}

impl IdGenerator {
    /// Creates a generator for `1..=count`. For a Zipfian distribution this computes a sum over all ids.
    #[must_use]
    pub fn new(count: u64, distribution: Distribution) -> IdGenerator {
        let zeta = match distribution {
            Distribution::Zipfian(theta) => zeta(count, theta),
            _ => 0.0,
        };
        IdGenerator {
            count,
            distribution,
            zeta,
        }
    }

    /// Draws the next id.
    pub fn draw(&self, engine: &mut MinStdEngine) -> u64 {
        let count = self.count as f64;
        match self.distribution {
            Distribution::Uniform => 1 + engine.up_to(self.count - 1),
            Distribution::SelfSimilar(skew) => {
                let exponent = skew.ln() / (1.0 - skew).ln();
                1 + (count * engine.canonical().powf(exponent)) as u64
            }
            Distribution::Zipfian(theta) => {
                let eta =
                    (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - zeta(2, theta) / self.zeta);
                let drawn = engine.canonical();
                match drawn * self.zeta {
                    small if small < 1.0 => 1,
                    small if small < 1.0 + 0.5_f64.powf(theta) => 2,
                    _ => 1 + (count * (eta * drawn - eta + 1.0).powf(1.0 / (1.0 - theta))) as u64,
                }
            }
        }
    }
}

fn zeta(count: u64, theta: f64) -> f64 {
    (1..=count).map(|i| (1.0 / i as f64).powf(theta)).sum()
}

/// Returns the key of an id. Different ids have different keys.
#[must_use]
pub fn key_of(id: u64) -> u64 {
    id.wrapping_mul(11_400_714_819_323_198_393)
}

/// Returns a key of the study's phases. It is odd, so the even number below it is never a key.
#[must_use]
pub fn odd(n: u64) -> u64 {
    key_of(n) << 1 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values printed by C++ programs with libstdc++ 12.
    #[test]
    fn draws_equal_those_of_libstdcxx() {
        let three = |draw: &mut dyn FnMut() -> u64| [draw(), draw(), draw()];
        let mut engine = MinStdEngine::new(1729);
        assert_eq!(
            three(&mut || engine.draw()),
            [29_059_303, 920_917_652, 948_333_235]
        );
        let mut engine = MinStdEngine::new(0);
        assert_eq!(
            three(&mut || engine.draw()),
            [16_807, 282_475_249, 1_622_650_073]
        );
        let mut engine = MinStdEngine::new(1729);
        assert_eq!(
            three(&mut || 1 + engine.up_to(999_999)),
            [13_535, 428_933, 441_702]
        );
        let mut engine = MinStdEngine::new(3458);
        let wide = three(&mut || 1 + engine.up_to((1 << 40) - 1));
        assert_eq!(wide, [29_759_122_702, 972_836_196_860, 339_647_873_865]);
        let mut engine = MinStdEngine::new(1729);
        let same = three(&mut || 1 + engine.up_to(MinStdEngine::RANGE));
        assert_eq!(same, [29_059_303, 920_917_652, 948_333_235]);
        let mut engine = MinStdEngine::new(1729);
        let canonical = [engine.canonical(), engine.canonical()];
        assert_eq!(
            canonical,
            [0.428_835_699_274_764_95, 0.006_078_095_386_623_529]
        );
    }

    #[test]
    fn skewed_ids_equal_those_of_pibench() {
        let draw = |distribution| {
            let (ids, mut engine) = (
                IdGenerator::new(1_000_000, distribution),
                MinStdEngine::new(1729),
            );
            [(); 6].map(|()| ids.draw(&mut engine))
        };
        assert_eq!(
            draw(Distribution::SelfSimilar(0.2)),
            [2_228, 1, 19_772, 134_390, 1, 1]
        );
        assert_eq!(
            draw(Distribution::Zipfian(0.99)),
            [303, 1, 2_772, 34_507, 2, 2]
        );
    }

    #[test]
    fn ids_stay_within_their_range() {
        let mut engine = MinStdEngine::new(7);
        for distribution in [
            Distribution::Uniform,
            Distribution::SelfSimilar(0.2),
            Distribution::Zipfian(0.9),
        ] {
            let ids = IdGenerator::new(100, distribution);
            assert!((0..10_000).all(|_| (1..=100).contains(&ids.draw(&mut engine))));
        }
    }
}
