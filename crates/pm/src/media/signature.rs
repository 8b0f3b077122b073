//! Recognition of data that is already on a device, so that a new pool does not overwrite it.
//!
//! The first bytes of a device identify most formats by a signature. Bytes that are not zero and match no known
//! signature count as data, too.

/// Number of bytes examined at the start of a device. All signatures lie within them.
pub(super) const EXAMINED_BYTES: usize = 128 << 10;

/// Known signatures: offset in bytes, signature, description of the format.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"PMEMPOOL", "a PMDK pool"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (0, b"bcachefs", "a bcachefs file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0, b"LABELONE", "an LVM physical volume"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a software RAID"),
    (4096, b"NVDIMM_PFN_INFO\0", "a PFN namespace"),
    (4096, b"NVDIMM_BTT_INFO\0", "a BTT namespace"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// Returns a description of the data in `bytes`, the first [`LOOKED_AT`] bytes of a device or fewer. `None` if all are
/// zero.
pub(super) fn describe(bytes: &[u8]) -> Option<String> {
    let named = SIGNATURES.iter().find(|(at, signature, _)| {
        bytes
            .get(*at..)
            .is_some_and(|bytes| bytes.starts_with(signature))
    });
    if let Some((_, _, what)) = named {
        return Some((*what).to_owned());
    }
    let first = bytes.iter().position(|&byte| byte != 0)?;
    Some(format!(
        "unknown data: byte {first} is {:#04x}",
        bytes[first]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_recognised_within_the_examined_bytes() {
        for (at, signature, what) in SIGNATURES {
            let mut bytes = vec![0; EXAMINED_BYTES];
            bytes[*at..at + signature.len()].copy_from_slice(signature);
            assert_eq!(describe(&bytes).as_deref(), Some(*what));
        }
    }

    #[test]
    fn non_zero_bytes_without_a_signature_are_unknown_data_and_zeros_are_none() {
        let mut bytes = vec![0; EXAMINED_BYTES];
        assert_eq!(describe(&bytes), None);
        assert_eq!(describe(&[]), None);
        bytes[EXAMINED_BYTES - 1] = 7;
        let found = describe(&bytes).expect("one byte is not zero");
        assert!(found.contains("131071 is 0x07"), "{found}");
    }
}
