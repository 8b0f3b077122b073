//! The first line of a script, `#!lua flags=...`, which declares what the script does.

/// Flags of a script that starts with a shebang, or of a function.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ScriptFlags {
    /// It must not write.
    pub(crate) no_writes: bool,
    /// It has no shebang, so its flags are unknown.
    pub(crate) is_unknown: bool,
}

impl ScriptFlags {
    /// Flags of a script without a shebang.
    pub(crate) const UNKNOWN: ScriptFlags = ScriptFlags {
        no_writes: false,
        is_unknown: true,
    };

    /// Adds the flag `name`. Returns `false` if no such flag exists.
    pub(crate) fn add(&mut self, name: &[u8]) -> bool {
        match name {
            b"no-writes" => self.no_writes = true,
            // Without effect here: there is no memory limit on values, no replica and no cluster.
            b"allow-oom" | b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys" => {}
            _ => return false,
        }
        true
    }
}

/// Splits a script into its flags and the source after the shebang line. The source begins with the line's end, so that
/// Lua counts lines as in the script.
///
/// # Errors
/// The text of the error reply.
pub(crate) fn split(body: &[u8]) -> Result<(ScriptFlags, &[u8]), Vec<u8>> {
    if !body.starts_with(b"#!") {
        return Ok((ScriptFlags::UNKNOWN, body));
    }
    let end = body.iter().position(|&b| b == b'\n');
    let end = end.ok_or_else(|| b"ERR Invalid script shebang".to_vec())?;
    let mut words = body[..end]
        .split(|&b| b == b' ')
        .filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err([b"ERR Unexpected engine in script shebang: ", engine].concat());
    }
    let mut flags = ScriptFlags::default();
    for word in words {
        let Some(list) = word.strip_prefix(b"flags=") else {
            return Err([b"ERR Unknown lua shebang option: ", word].concat());
        };
        for name in list.split(|&b| b == b',').filter(|name| !name.is_empty()) {
            if !flags.add(name) {
                return Err([b"ERR Unexpected flag in script shebang: ", name].concat());
            }
        }
    }
    Ok((flags, &body[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_after_a_shebang_keeps_its_line_numbers() {
        let (flags, source) = split(b"#!lua flags=no-writes,allow-oom\nreturn 1").unwrap();
        assert!(flags.no_writes && !flags.is_unknown);
        assert_eq!(source, b"\nreturn 1");
        assert_eq!(split(b"return 1").unwrap().0, ScriptFlags::UNKNOWN);
        assert!(split(b"#!lua flags=x\n").is_err());
        assert!(split(b"#!lua").is_err());
    }
}
