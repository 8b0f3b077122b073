//! `serve --config FILE`: options from a TOML file.
//!
//! ```text
//!   port = 7000            is        --port 7000
//!   bind = ["::1", "127.0.0.1"]      --bind ::1,127.0.0.1
//!   unsafe-no-auth = true            --unsafe-no-auth
//! ```
//!
//! The file's keys are the command line's options without their dashes, so that there is one list of
//! them, one description and one check. What the command line says itself comes later and counts.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use toml::Value;

use crate::Failure;

/// The command line `args` with the options of the file it names, if it names one, before its own.
pub(crate) fn with_file(args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    const VERB: usize = 1;
    let serves = args.get(VERB).is_some_and(|verb| verb == "serve");
    let Some(path) = named_file(&args).filter(|_| serves) else {
        return Ok(args);
    };
    let path = Path::new(path);
    let at = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| at(format!("cannot read it: {e}")))?;
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| at(e.to_string()))?;
    let mut merged = args[..=VERB].to_vec();
    for (key, value) in &table {
        merged.extend(option(key, value).map_err(at)?);
    }
    merged.extend_from_slice(&args[VERB + 1..]);
    Ok(merged)
}

/// The file of `--config FILE` or `--config=FILE`.
fn named_file(args: &[OsString]) -> Option<&OsStr> {
    let by_itself = args.iter().position(|arg| arg == "--config").map(|i| i + 1);
    let joined = || {
        args.iter()
            .find_map(|arg| arg.to_str()?.strip_prefix("--config="))
    };
    by_itself
        .and_then(|i| args.get(i).map(OsString::as_os_str))
        .or_else(|| joined().map(OsStr::new))
}

/// One line of the file as an option.
fn option(key: &str, value: &Value) -> Result<Option<OsString>, String> {
    if key == "config" {
        return Err("a file cannot name another one with \"config\"".into());
    }
    let one = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        other => Err(format!("{key:?} cannot be a {}", other.type_str())),
    };
    match value {
        Value::Boolean(false) => Ok(None),
        Value::Boolean(true) => Ok(Some(format!("--{key}").into())),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(one).collect::<Result<_, _>>()?;
            Ok(Some(format!("--{key}={}", values.join(",")).into()))
        }
        value => Ok(Some(format!("--{key}={}", one(value)?).into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(file: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("farbank.toml");
        std::fs::write(&path, file).unwrap();
        let mut args: Vec<OsString> = ["farbank", "serve", "--config"].map(OsString::from).into();
        args.push(path.into());
        args.extend(more.iter().map(OsString::from));
        match with_file(args) {
            Ok(args) => Ok(args.into_iter().map(|a| a.into_string().unwrap()).collect()),
            Err(Failure::Usage(why)) => Err(why),
            Err(_) => panic!("a file's mistakes are mistakes of usage"),
        }
    }

    #[test]
    fn a_file_gives_options_and_the_command_line_comes_after_them() {
        let file = "port = 7000\nbind = ['::1', '127.0.0.1']\nunsafe-no-auth = false\nsize = '2gb'";
        let args = merged(file, &["--port", "7001"]).unwrap();
        let own = args.iter().position(|a| a == "--config").unwrap();
        assert_eq!(args[..2], ["farbank", "serve"]);
        let mut given = args[2..own].to_vec();
        given.sort();
        assert_eq!(given, ["--bind=::1,127.0.0.1", "--port=7000", "--size=2gb"]);
        assert_eq!(args[own + 2..], ["--port", "7001"]);
    }

    #[test]
    fn mistakes_in_a_file_are_named() {
        for (file, why) in [
            ("port = ", "port"),
            ("config = 'x'", "another one"),
            ("port = 1.5", "float"),
        ] {
            let error = merged(file, &[]).unwrap_err();
            assert!(
                error.contains(why) && error.contains("farbank.toml"),
                "{error}"
            );
        }
    }
}
