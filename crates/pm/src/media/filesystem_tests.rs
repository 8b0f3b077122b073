use std::os::fd::AsFd;

use super::*;

fn mount(kind: &str, options: &str) -> Mount {
    let line = format!("36 35 98:0 / /mnt rw shared:1 - {kind} source {options}");
    Mount::parse(&line, 36).expect("a line of mountinfo")
}

fn judged(f_type: u32, mount: &Mount) -> FileSystemReport {
    assess(f_type, Some(mount), false, None)
}

#[test]
fn file_systems_that_other_machines_can_mount_are_refused_by_name() {
    for (f_type, name) in [
        (0x6969, "nfs4"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb3"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "ceph"),
        (0x6573_5546, "fuse.sshfs"),
    ] {
        let found = judged(f_type, &mount(name, "rw"));
        let (named, why) = found.refusal.expect("it is refused");
        assert_eq!((named.as_str(), why), (name, WHY_REMOTE));
    }
}

#[test]
fn file_systems_that_write_in_place_are_accepted_without_a_warning() {
    for f_type in [0xef53, 0x5846_5342, 0xf2f5_2010, 0x0102_1994] {
        assert_eq!(
            judged(f_type, &mount("ext4", "rw")),
            FileSystemReport::default()
        );
    }
    let btrfs = assess(0x9123_683e, Some(&mount("btrfs", "rw")), true, None);
    assert_eq!(btrfs, FileSystemReport::default(), "a nodatacow file");
}

#[test]
fn file_systems_with_limits_are_accepted_with_a_warning_that_names_them() {
    for (f_type, name) in [
        (0x9123_683e, "btrfs"),
        (0x2fc1_2fc1, "zfs"),
        (0x6573_5546, "fuse.bindfs"),
        (0x4d44, "vfat"),
        (0x1234_5678, "newfs"),
    ] {
        let found = judged(f_type, &mount(name, "rw"));
        assert_eq!(found.refusal, None, "{name}");
        assert!(found.warnings[0].contains(name), "{found:?}");
    }
}

#[test]
fn an_overlay_is_assessed_by_its_upper_layer() {
    let overlay = mount("overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w");
    let over = |upper| assess(0x794c_7630, Some(&overlay), false, upper);
    assert_eq!(over(Some(0xef53)), FileSystemReport::default());
    assert_eq!(over(None).warnings.len(), 1);
    assert!(over(Some(0x0102_1994)).limits.is_some(), "memory");
    assert!(over(Some(0x6969)).refusal.is_some(), "nfs");
    let volatile = mount("overlay", "rw,upperdir=/u,volatile");
    let found = assess(0x794c_7630, Some(&volatile), false, Some(0xef53));
    assert_eq!(found.refusal.map(|(_, why)| why), Some(WHY_VOLATILE));
}

#[test]
fn a_mount_without_barriers_is_warned_about() {
    let found = judged(0xef53, &mount("ext4", "rw,nobarrier"));
    assert!(found.warnings[0].contains("nobarrier"), "{found:?}");
    assert!(found.limits.is_some());
}

#[test]
fn mount_options_are_parsed_and_their_escapes_decoded() {
    let overlay = mount("overlay", r"rw,upperdir=/a\040b\134c,workdir=/w");
    let upper = overlay.value("upperdir");
    assert_eq!(upper, Some(PathBuf::from(r"/a b\c")));
    assert_eq!(unescape(r"/ends\04"), PathBuf::from(r"/ends\04"));
    assert_eq!(Mount::parse("36 35 98:0 / /mnt rw - ext4 x rw", 35), None);
    assert_eq!(Mount::parse("", 1), None);
    assert_eq!(Mount::parse("1 no dash", 1), None);
}

#[test]
fn every_file_system_type_has_one_row_in_the_table() {
    for (n, (f_type, ..)) in TABLE.iter().enumerate() {
        let again = TABLE[n + 1..].iter().any(|(other, ..)| other == f_type);
        assert!(!again, "{f_type:#x}");
    }
}

#[test]
fn the_self_test_detects_a_mapping_that_does_not_show_written_bytes() {
    let (written, mapped) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    for file in [&written, &mapped] {
        file.set_len(pool::HEAD_BYTES).unwrap();
    }
    let is_shown_by = |file: &fs::File| {
        let window = mapping(file.as_fd()).unwrap();
        is_coherent(written.as_fd(), &mut |line| {
            let mut shown = [0; LINE];
            window.copy_out(Off(TEST_AT), &mut shown);
            Ok(shown == *line)
        })
    };
    assert!(is_shown_by(&written).unwrap());
    assert!(!is_shown_by(&mapped).unwrap());
    let failed = is_coherent(written.as_fd(), &mut |_| Err(io::ErrorKind::Other.into()));
    assert!(failed.is_err());
    let mut after = Vec::new();
    io::Read::read_to_end(&mut &written, &mut after).unwrap();
    assert!(
        after.iter().all(|&byte| byte == 0),
        "the test restored the former bytes"
    );
}

#[test]
fn shared_blocks_are_accepted_after_a_full_disk_but_not_after_a_device_error() {
    use rustix::io::Errno;
    for (errno, harmless) in [
        (Errno::NOSPC, true),
        (Errno::DQUOT, true),
        (Errno::IO, false),
        (Errno::NXIO, false),
        (Errno::ROFS, false),
    ] {
        assert_eq!(
            is_harmless(io::Error::from(errno).kind()),
            harmless,
            "{errno}"
        );
    }
    assert!(is_harmless(io::Error::other("shared again").kind()));
}

#[test]
fn a_pool_file_that_other_users_can_read_or_change_gets_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    for (mode, said) in [
        (0o600, None),
        (0o400, None),
        (0o666, Some("change")),
        (0o620, Some("change")),
        (0o644, Some("read")),
    ] {
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        let text = permission_warning(&file.as_file().metadata().unwrap());
        assert_eq!(text.is_some(), said.is_some(), "{text:?}");
        assert!(text.unwrap_or_default().contains(said.unwrap_or_default()));
    }
}

#[test]
fn memory_that_the_kernel_does_not_report_as_persistent_is_warned_of() {
    for persistence in [
        DevicePersistence::Unknown,
        DevicePersistence::Memory,
        DevicePersistence::Caches,
    ] {
        let mut found = FileSystemReport::default();
        found.assess_memory(persistence);
        let is_unknown = persistence == DevicePersistence::Unknown;
        let is_limited =
            |survives: &str| survives.contains("possibly lost in a restart or power cut");
        assert_eq!(found.survives.is_some_and(is_limited), is_unknown);
        let warned = found
            .warnings
            .iter()
            .any(|text| text.contains("does not report this memory"));
        assert_eq!(warned, is_unknown, "{persistence:?}: {:?}", found.warnings);
    }
}
