//! Lazy memory against all images: whatever a reader can see on one, it sees on the other.

use std::collections::BTreeSet;

use super::*;

/// What a reader saw.
type Transcript = Vec<u64>;

/// Runs `reader` under every script.
fn leaves(state: &CrashState, mut reader: impl FnMut(&Sim)) -> usize {
    let (mut script, mut count) = (Vec::new(), 0);
    loop {
        let sim = Sim::lazy(state, &script);
        reader(&sim);
        count += 1;
        match next_script(&sim.decisions()) {
            Some(next) => script = next,
            None => return count,
        }
    }
}

/// A reader drawn from a seed: what it does next depends on what it has seen. Checksums it takes
/// only for what they are meant for, as those of a content that was whole, or of none.
struct Reader<'a> {
    state: &'a CrashState,
    seed: u64,
    range: u64,
}

impl Reader<'_> {
    fn read(&self, sim: &Sim) -> Transcript {
        let mut seen: Transcript = vec![self.seed];
        let mut lane = Lane::new(9);
        let mut own: Vec<(u64, u64)> = Vec::new();
        for _ in 0..6 {
            let rng = &mut Rng::new(seen.iter().fold(0, |a, &b| Rng::new(a ^ b).draw()));
            let word = rng.below(self.range / 8) * 8;
            let len = (1 + rng.below(150)).min(self.range - word) as usize;
            let at = Off(word + rng.below(8).min(len as u64 - 1));
            let len = len - (at.0 - word) as usize;
            match rng.below(8) {
                0..3 => seen.push(sim.load(Off(word))),
                3 => {
                    let mut bytes = vec![0; len.min(20)];
                    sim.copy_out(at, &mut bytes);
                    sim.append_out(at, len.min(20), &mut bytes);
                    seen.extend(bytes.iter().map(|&b| u64::from(b)));
                }
                4 => {
                    let versions = self.versions(&own);
                    let whole = &versions[rng.below(versions.len() as u64) as usize];
                    let bytes = &whole.to_bytes()[at.0 as usize..][..len];
                    seen.push(u64::from(sim.matches(at, bytes)));
                }
                5 => {
                    let crc = sim.crc(at, len, 7);
                    let whole = |image: &Image| {
                        Sim::from_image(image.clone(), self.state.persistency).crc(at, len, 7)
                    };
                    let known = self.versions(&own).iter().any(|image| whole(image) == crc);
                    seen.push(if known { u64::from(crc) } else { u64::MAX });
                }
                6 => {
                    own.push((word, 77));
                    sim.store(&mut lane, Off(word), 77);
                    sim.flush(&mut lane, Off(word), 8);
                    let ticket = sim.drain(&mut lane);
                    sim.wait(ticket).unwrap();
                }
                _ => {
                    let swapped = sim.cas(&mut lane, Off(word), 1, 78);
                    own.extend(swapped.is_ok().then_some((word, 78)));
                    seen.push(swapped.map_or_else(|found| found, |_| 1));
                }
            }
        }
        seen
    }

    /// The durable content, and that after each call, with what the reader has stored.
    fn versions(&self, own: &[(u64, u64)]) -> Vec<Image> {
        let stores = || self.state.queues.values().flatten();
        let calls: BTreeSet<u64> = stores().map(|s| s.call).chain([0]).collect();
        let version = |&call: &u64| {
            let mut image = self.state.durable.clone();
            for store in stores().filter(|s| s.call <= call) {
                image.set_word(Off(store.word), store.value);
            }
            own.iter().for_each(|o| image.set_word(Off(o.0), o.1));
            image
        };
        calls.iter().map(version).collect()
    }
}

/// A moment in a small program drawn from a seed.
fn moment(persistency: Persistency, seed: u64, range: u64) -> CrashState {
    let rng = &mut Rng::new(seed);
    let sim = Sim::new(range, persistency);
    let mut lanes = [Lane::new(0), Lane::new(1)];
    for _ in 0..3 + rng.below(10) {
        let lane = &mut lanes[rng.below(2) as usize];
        let at = Off(rng.below(range / 8) * 8);
        let len = (8 + rng.below(130)).min(range - at.0) as usize;
        match rng.below(6) {
            0 | 1 => sim.store(lane, at, rng.below(3)),
            2 => drop(sim.cas(lane, at, sim.load(at), rng.below(3))),
            3 => {
                let words = (0..len).map(|i| (rng.below(3) * u64::from(i % 8 == 0)) as u8);
                sim.copy_in(lane, at, &[&words.collect::<Vec<_>>()]);
            }
            4 => sim.flush(lane, at, len),
            _ => {
                let ticket = sim.drain(lane);
                if rng.one_in(2) {
                    sim.wait(ticket).unwrap();
                }
            }
        }
    }
    sim.crash_state()
}

#[test]
fn a_reader_sees_lazily_exactly_what_it_sees_on_all_images() {
    for persistency in Persistency::ALL {
        let range = 3 * persistency.unit_bytes() as u64;
        let (mut all_images, mut all_leaves, mut seeds) = (0, 0, 0);
        for seed in 0..400 {
            let state = moment(persistency, seed, range);
            let images = state.images(1500, 0);
            if !images.exhaustive() {
                continue;
            }
            let reader = Reader {
                state: &state,
                seed,
                range,
            };
            let mut eager = BTreeSet::new();
            for cut in images {
                let sim = Sim::from_image(state.image(&cut), persistency);
                eager.insert(reader.read(&sim));
                all_images += 1;
            }
            let mut lazy = BTreeSet::new();
            all_leaves += leaves(&state, |sim| {
                let seen = reader.read(sim);
                let cut = sim.cut().unwrap();
                let image = state.image(&cut);
                assert_eq!(image.hash(), cut.hash, "{persistency}, seed {seed}");
                let again = reader.read(&Sim::from_image(image, persistency));
                assert_eq!(seen, again, "{persistency}, seed {seed}: its own image");
                lazy.insert(seen);
            });
            assert_eq!(lazy, eager, "{persistency}, seed {seed}");
            seeds += 1;
        }
        println!("{persistency}: {seeds} seeds, {all_images} images, {all_leaves} leaves");
        assert!(
            seeds > 100 && all_leaves <= all_images,
            "{persistency}: {seeds} seeds, {all_leaves} leaves, {all_images} images"
        );
    }
}
