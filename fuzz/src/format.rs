//! Locates and forges fields of a pool, with their checksums, according to `docs/format.md`.

use crc32c::{crc32c, crc32c_append};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// Bytes of a segment.
pub const SEGMENT: usize = 4096;
/// Offset of the first segment.
pub const FIRST: usize = 8192;
/// Offsets of the two copies of the superblock.
pub const COPIES: [usize; 2] = [0, 4096];
/// Bytes in a copy of the superblock.
pub const COPY: usize = 512;
/// Range of a segment that holds records.
const RECORDS: std::ops::Range<usize> = 64..SEGMENT - 64;

/// Writes the checksum of the superblock copy in `copy`.
pub fn seal_superblock(copy: &mut [u8]) {
    let checksum = xxh3_128(&copy[..COPY - 16]).to_le_bytes();
    copy[COPY - 16..COPY].copy_from_slice(&checksum);
}

/// The bytes of a pool. Methods accept any offset and ignore bytes beyond the end.
pub struct Bytes<'a>(pub &'a mut Vec<u8>);

impl Bytes<'_> {
    fn word(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..at + 8);
        bytes.map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight")))
    }

    /// Writes `bytes` at `at`, up to the pool's end.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = self.0.len();
        let to = &mut self.0[at.min(end)..end.min(at + bytes.len())];
        to.copy_from_slice(&bytes[..to.len()]);
    }

    /// Returns the number of complete segments.
    pub fn segments(&self) -> usize {
        self.0.len().saturating_sub(FIRST) / SEGMENT
    }

    fn pool_key(&self) -> u64 {
        xxh3_64_with_seed(self.0.get(40..56).unwrap_or_default(), 1)
    }

    fn base(segment: usize) -> usize {
        FIRST + segment * SEGMENT
    }

    fn generation(&self, segment: usize) -> [u8; 8] {
        self.word(Self::base(segment) + 8).to_le_bytes()
    }

    /// Replaces a word in both copies of the superblock, with valid checksums.
    pub fn forge_superblock(&mut self, at: usize, value: u64) {
        for start in COPIES {
            self.write(start + at, &value.to_le_bytes());
            if let Some(copy) = self.0.get_mut(start..start + COPY) {
                seal_superblock(copy);
            }
        }
    }

    /// Replaces a segment's generation in its head, its tail, or both, with valid checksums.
    pub fn forge_generation(&mut self, segment: usize, ends: [bool; 2], generation: u64) {
        let base = Self::base(segment);
        for (at, chosen) in [base, base + SEGMENT - 64].into_iter().zip(ends) {
            let seed = xxh3_64_with_seed(&(at as u64).to_le_bytes(), self.pool_key()) as u32;
            let generation = generation.to_le_bytes();
            if chosen {
                self.write(at, b"FBsg");
                self.write(at + 4, &crc32c_append(seed, &generation).to_le_bytes());
                self.write(at + 8, &generation);
            }
        }
    }

    /// Replaces the purpose of an open segment and the open epoch in which it was opened.
    pub fn forge_opened(&mut self, segment: usize, purpose: u8, boot: u32) {
        let low = (boot & 0xff_ffff) << 8 | u32::from(purpose);
        self.forge_life_word(segment, &[32, 40], low);
    }

    /// Replaces the end of a sealed segment's records.
    pub fn forge_sealed(&mut self, segment: usize, end: u32) {
        self.forge_life_word(segment, &[48], end);
    }

    fn forge_life_word(&mut self, segment: usize, places: &[usize], low: u32) {
        let crc = crc32c_append(crc32c(&self.generation(segment)), &low.to_le_bytes());
        let word = (u64::from(crc) << 32 | u64::from(low)).to_le_bytes();
        for at in places {
            self.write(Self::base(segment) + at, &word);
        }
    }

    /// Returns the seed of the header checksum of a record at `at`, and the header's length according to its shape
    /// word.
    fn record_at(&self, at: usize) -> (u32, usize) {
        let base = FIRST + (at - FIRST) / SEGMENT * SEGMENT;
        let boot = self.word(base + 40) >> 8 & 0xff_ffff;
        let life = [self.word(base + 8).to_le_bytes(), boot.to_le_bytes()];
        let place = self.pool_key() ^ (base as u64).rotate_left(32);
        let seed = xxh3_64_with_seed(life.as_flattened(), place) as u32 ^ (at - base) as u32;
        let shape = self.word(at + 16);
        let header = 24 + 8 * (shape >> 58 & 1) + 8 * (shape >> 59 & 1);
        (seed, header as usize)
    }

    fn header_crc(&self, at: usize) -> Option<u32> {
        let (seed, header) = self.record_at(at);
        Some(crc32c_append(seed, self.0.get(at + 4..at + header)?))
    }

    /// Returns the offsets of a segment's records, members of groups included.
    pub fn records(&self, segment: usize) -> Vec<usize> {
        let places = RECORDS.step_by(16).map(|at| Self::base(segment) + at);
        let holds = |at: &usize| self.header_crc(*at) == Some(self.word(*at) as u32);
        places.filter(holds).collect()
    }

    /// Replaces a word of a record's header or body, and updates its checksums.
    pub fn forge_record(&mut self, at: usize, word: usize, value: u64) {
        self.write(at + 8 * word, &value.to_le_bytes());
        let shape = self.word(at + 16);
        let (_, header) = self.record_at(at);
        let body = (shape as usize & ((1 << 30) - 1)) + (shape >> 30 & ((1 << 17) - 1)) as usize;
        if word > 2 {
            let body = self.0.get(at + header..at + header + body);
            let crc = crc32c(body.unwrap_or_default());
            self.write(at + 4, &crc.to_le_bytes());
        }
        if let Some(crc) = self.header_crc(at) {
            self.write(at, &crc.to_le_bytes());
        }
    }

    /// Returns the segments of the snapshot, in order.
    pub fn snapshot(&self) -> Vec<usize> {
        let mut segments = Vec::new();
        let mut next = self.word(128) as usize;
        while next != 0 && next <= self.segments() && !segments.contains(&(next - 1)) {
            segments.push(next - 1);
            next = self.word(Self::base(next - 1) + 64) as usize;
        }
        segments
    }

    /// Replaces a word of a piece of the snapshot, and updates its checksum.
    pub fn forge_snapshot(&mut self, segment: usize, word: usize, value: u64) {
        let at = Self::base(segment) + 64;
        self.write(at + 8 * word, &value.to_le_bytes());
        let len = self.word(at + 16) as usize;
        let piece = self
            .0
            .get(at + 32..at.saturating_add(32).saturating_add(len));
        let crc = crc32c_append(crc32c(&self.0[at..at + 24]), piece.unwrap_or_default());
        self.write(at + 24, &u64::from(crc).to_le_bytes());
    }
}
