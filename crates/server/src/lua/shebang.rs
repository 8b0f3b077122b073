//! The first line of a script, `#!lua flags=...`, which declares what the script does.

use crate::protocol::resp::parse::words_of;

/// Flags of a script that starts with a shebang, or of a function.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ScriptFlags {
    /// It must not write.
    pub(crate) no_writes: bool,
    /// It may write above `maxmemory`.
    pub(crate) allow_oom: bool,
    /// It has no shebang, so its flags are unknown.
    pub(crate) is_unknown: bool,
}

impl ScriptFlags {
    /// Flags of a script without a shebang.
    pub(crate) const UNKNOWN: ScriptFlags = ScriptFlags {
        no_writes: false,
        allow_oom: false,
        is_unknown: true,
    };

    /// Adds the flag `name`. Returns `false` if no such flag exists.
    pub(crate) fn add(&mut self, name: &[u8]) -> bool {
        match name {
            b"no-writes" => self.no_writes = true,
            b"allow-oom" => self.allow_oom = true,
            // Without effect here: there is no replica and no cluster.
            b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys" => {}
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

/// The name in a library's first line, and the source after that line, which begins with the line's end.
///
/// # Errors
/// The text of the error reply.
pub(crate) fn library(code: &[u8]) -> Result<(String, &[u8]), Vec<u8>> {
    if !code.starts_with(b"#!") {
        return Err(b"ERR Missing library metadata".to_vec());
    }
    let invalid = || b"ERR Invalid library metadata".to_vec();
    // As in Redis, the text ends at the first NUL.
    let text = code.split(|&b| b == 0).next().unwrap_or_default();
    let end = text.iter().position(|&b| b == b'\n').ok_or_else(invalid)?;
    let words = words_of(&code[..end]).ok_or_else(invalid)?;
    let mut words = words.into_iter();
    let engine = words.next().ok_or_else(invalid)?;
    let mut name = None;
    for word in words {
        match word.split_at_checked(5) {
            Some((key, value)) if key.eq_ignore_ascii_case(b"name=") => {
                if name.replace(value.to_vec()).is_some() {
                    let text = "ERR Invalid metadata value, name argument was given multiple times";
                    return Err(text.into());
                }
            }
            _ => return Err([b"ERR Invalid metadata value given: ", &word[..]].concat()),
        }
    }
    let name = name.ok_or_else(|| b"ERR Library name was not given".to_vec())?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let name = match String::from_utf8(name) {
        Ok(name) if !name.is_empty() && name.bytes().all(|byte| is_plain(&byte)) => name,
        _ => {
            return Err(
                b"ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one \
                  character long"
                    .to_vec(),
            );
        }
    };
    let engine = engine.get(2..).unwrap_or_default();
    if !engine.eq_ignore_ascii_case(b"lua") {
        return Err([b"ERR Engine '", engine, b"' not found"].concat());
    }
    Ok((name, &code[end..]))
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
