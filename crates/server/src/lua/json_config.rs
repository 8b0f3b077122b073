//! Settings of a table of `cjson`, and the functions that a script reads and changes them with.
//!
//! The settings of the global `cjson` apply until the script, the function or the loading library ends
//! ([`JsonSettings::reset`]). A table that `cjson.new` returns has settings of its own.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use super::library::{Arguments, LibraryError, LibraryResult, one, register};

/// What `encode` does with infinite numbers and with those that are not a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InvalidNumbers {
    /// Raises an error.
    Refused,
    /// Writes `inf`, `-inf` or `nan`.
    Written,
    /// Writes `null`.
    Null,
}

/// Settings of a table of `cjson`.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonConfig {
    /// `encode` writes an excessively sparse array as an object. Otherwise it raises an error.
    pub(super) converts_sparse: bool,
    /// Largest ratio of an array's last index to the number of its elements; 0: any.
    pub(super) sparse_ratio: i32,
    /// Last index up to which an array is never too sparse.
    pub(super) sparse_safe: i32,
    /// Most nested arrays and objects in `encode`.
    pub(super) encode_depth_max: i32,
    /// Most nested arrays and objects in `decode`.
    pub(super) decode_depth_max: i32,
    pub(super) invalid_numbers: InvalidNumbers,
    /// `decode` accepts `inf`, `nan`, hexadecimal numbers, leading zeros and a leading `+`.
    pub(super) decodes_invalid: bool,
    /// Significant digits of a number.
    pub(super) digits: i32,
    /// Only returned to scripts: a buffer is never kept.
    keeps_buffer: bool,
}

impl Default for JsonConfig {
    fn default() -> JsonConfig {
        JsonConfig {
            converts_sparse: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth_max: 1000,
            decode_depth_max: 1000,
            invalid_numbers: InvalidNumbers::Refused,
            decodes_invalid: true,
            digits: 14,
            keeps_buffer: true,
        }
    }
}

/// The settings that the functions of one table of `cjson` share.
#[derive(Clone, Default)]
pub(super) struct JsonSettings(Rc<Cell<JsonConfig>>);

impl JsonSettings {
    pub(super) fn get(&self) -> JsonConfig {
        self.0.get()
    }

    /// Restores the default settings.
    pub(super) fn reset(&self) {
        self.0.set(JsonConfig::default());
    }

    /// Adds the functions to `table`.
    pub(super) fn register(&self, lua: &Lua, table: &Table) -> mlua::Result<()> {
        let add = |name, change: Change| {
            let settings = self.clone();
            register(lua, table, name, move |lua, args| {
                let mut config = settings.get();
                // As in Redis, arguments before a wrong one apply.
                let results = change(lua, args, &mut config);
                settings.0.set(config);
                results
            })
        };
        add("encode_sparse_array", |lua, args, config| {
            at_most(args, 3)?;
            boolean(lua, args, &mut config.converts_sparse)?;
            integer(lua, args, 2, &mut config.sparse_ratio, 0, i32::MAX)?;
            integer(lua, args, 3, &mut config.sparse_safe, 0, i32::MAX)?;
            Ok(MultiValue::from_vec(vec![
                Value::Boolean(config.converts_sparse),
                Value::Integer(config.sparse_ratio.into()),
                Value::Integer(config.sparse_safe.into()),
            ]))
        })?;
        add("encode_max_depth", |lua, args, config| {
            one_integer(lua, args, &mut config.encode_depth_max, i32::MAX)
        })?;
        add("decode_max_depth", |lua, args, config| {
            one_integer(lua, args, &mut config.decode_depth_max, i32::MAX)
        })?;
        add("encode_number_precision", |lua, args, config| {
            one_integer(lua, args, &mut config.digits, 14)
        })?;
        add("encode_keep_buffer", |lua, args, config| {
            one_boolean(lua, args, &mut config.keeps_buffer)
        })?;
        add("decode_invalid_numbers", |lua, args, config| {
            one_boolean(lua, args, &mut config.decodes_invalid)
        })?;
        add("encode_invalid_numbers", |lua, args, config| {
            at_most(args, 1)?;
            if let Some(word) = option(lua, args)? {
                config.invalid_numbers = match word.as_slice() {
                    b"off" => InvalidNumbers::Refused,
                    b"on" => InvalidNumbers::Written,
                    b"null" => InvalidNumbers::Null,
                    _ => return Err(unknown_option(args, &word)),
                };
            }
            one(match config.invalid_numbers {
                InvalidNumbers::Refused => Value::Boolean(false),
                InvalidNumbers::Written => Value::Boolean(true),
                InvalidNumbers::Null => Value::String(lua.create_string("null")?),
            })
        })
    }
}

/// Changes settings and returns their values.
type Change = fn(&Lua, &Arguments<'_>, &mut JsonConfig) -> LibraryResult;

fn at_most(args: &Arguments<'_>, count: usize) -> Result<(), LibraryError> {
    match args.len() > count {
        true => Err(args.bad(count + 1, "found too many arguments")),
        false => Ok(()),
    }
}

/// Reads the integer at `position`, if there is one. As in Redis, its bits after the 32nd do not count, and the error
/// of a value out of range names the first argument.
fn integer(
    lua: &Lua,
    args: &Arguments<'_>,
    position: usize,
    setting: &mut i32,
    min: i32,
    max: i32,
) -> Result<(), LibraryError> {
    let value = args.integer_or(lua, position, (*setting).into())? as i32;
    if !(min..=max).contains(&value) {
        let problem = format!("expected integer between {min} and {max}");
        return Err(args.bad(1, &problem));
    }
    *setting = value;
    Ok(())
}

fn one_integer(lua: &Lua, args: &Arguments<'_>, setting: &mut i32, max: i32) -> LibraryResult {
    at_most(args, 1)?;
    integer(lua, args, 1, setting, 1, max)?;
    one(Value::Integer((*setting).into()))
}

/// Returns the word of the first argument, if there is one; `on` or `off` for a boolean.
fn option(lua: &Lua, args: &Arguments<'_>) -> Result<Option<Vec<u8>>, LibraryError> {
    match args.value(1) {
        Value::Nil => Ok(None),
        Value::Boolean(true) => Ok(Some(b"on".to_vec())),
        Value::Boolean(false) => Ok(Some(b"off".to_vec())),
        _ => args.bytes(lua, 1).map(Some),
    }
}

fn unknown_option(args: &Arguments<'_>, word: &[u8]) -> LibraryError {
    let word = String::from_utf8_lossy(word);
    args.bad(1, &format!("invalid option '{word}'"))
}

fn boolean(lua: &Lua, args: &Arguments<'_>, setting: &mut bool) -> Result<(), LibraryError> {
    if let Some(word) = option(lua, args)? {
        *setting = match word.as_slice() {
            b"on" => true,
            b"off" => false,
            _ => return Err(unknown_option(args, &word)),
        };
    }
    Ok(())
}

fn one_boolean(lua: &Lua, args: &Arguments<'_>, setting: &mut bool) -> LibraryResult {
    at_most(args, 1)?;
    boolean(lua, args, setting)?;
    one(Value::Boolean(*setting))
}
