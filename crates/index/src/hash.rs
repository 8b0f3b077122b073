//! The hash of the study: libstdc++'s `_Hash_bytes` of a key's eight bytes, bit for bit.
//!
//! A 64-bit variant of MurmurHash 2. Load factors and orders of growth follow from it, so the published
//! figures come out again only with the same bits. It takes no secret: who can choose keys can make all of them
//! collide.

/// What the study started it from.
pub const SEED: u64 = 0x00c7_0697;

const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
/// What undoes a multiplication by it.
const INVERSE: u64 = 0x5f7a_0ea7_e59b_19bd;

#[inline]
fn mix(word: u64) -> u64 {
    word ^ (word >> 47)
}

/// What eight bytes are hashed from.
#[inline]
fn start(seed: u64) -> u64 {
    seed ^ 8_u64.wrapping_mul(MULTIPLIER)
}

/// The hash of `key`, from [`SEED`].
#[inline]
#[must_use]
pub fn hash(key: u64) -> u64 {
    hash_from(SEED, key)
}

/// The hash of `key`, from `seed`: tables with two hashes take two seeds.
#[inline]
#[must_use]
pub fn hash_from(seed: u64, key: u64) -> u64 {
    let data = mix(key.wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    let joined = (start(seed) ^ data).wrapping_mul(MULTIPLIER);
    mix(mix(joined).wrapping_mul(MULTIPLIER))
}

/// The key whose hash is `hash`: no two keys have the same one, as every step can be undone.
#[inline]
#[must_use]
pub fn key_of(hash: u64) -> u64 {
    let joined = mix(mix(hash).wrapping_mul(INVERSE));
    let data = joined.wrapping_mul(INVERSE) ^ start(SEED);
    mix(data.wrapping_mul(INVERSE)).wrapping_mul(INVERSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_libstdcxx() {
        // Printed by a C++ program that called std::_Hash_bytes(&key, 8, seed).
        for (seed, key, bits) in KNOWN {
            assert_eq!(hash_from(seed, key), bits, "seed {seed:#x}, key {key:#x}");
        }
    }

    #[test]
    fn a_hash_leads_back_to_its_key() {
        for key in (0..1000).chain([u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef]) {
            assert_eq!(key_of(hash(key)), key, "{key:#x}");
        }
    }

    const KNOWN: [(u64, u64, u64); 10] = [
        (0x00c7_0697, 0, 0xc7e8_34df_e977_8643),
        (0x00c7_0697, 0x1, 0x5933_8fd0_956c_55bd),
        (0x00c7_0697, 0x2a, 0x4c60_d113_42c3_8e05),
        (0x00c7_0697, 0xdead_beef_cafe_babe, 0x0ac1_2c04_7b6b_ffa1),
        (0x00c7_0697, 0xffff_ffff_ffff_ffff, 0x0f8d_cb17_72df_2c17),
        (0x1234_5678_90ab_cdef, 0, 0x846d_1d26_f550_402e),
        (0x1234_5678_90ab_cdef, 0x1, 0xe29f_f717_8e63_9d68),
        (0x1234_5678_90ab_cdef, 0x2a, 0x4700_f2fb_0f8b_91c2),
        (
            0x1234_5678_90ab_cdef,
            0xdead_beef_cafe_babe,
            0x565a_e171_987e_cc97,
        ),
        (
            0x1234_5678_90ab_cdef,
            0xffff_ffff_ffff_ffff,
            0x50d0_d17b_1d90_a6b7,
        ),
    ];
}
