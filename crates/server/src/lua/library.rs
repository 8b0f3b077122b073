//! Registration of library functions, and the errors that they raise.

use std::fmt;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::convert::error_table;
use super::host::{aborted, checked, with_host};

/// Name of the prelude's chunk.
pub(super) const PRELUDE_NAME: &str = "=redis";

/// Why a library function failed.
pub(super) enum LibraryError {
    /// A text, which gets the position of the call as in Lua's own libraries.
    Text(String),
    /// An error of `redis`: a table with the text in its field `err`.
    Reply(&'static str),
    /// An error of Lua itself.
    Lua(mlua::Error),
}

impl From<mlua::Error> for LibraryError {
    fn from(error: mlua::Error) -> LibraryError {
        LibraryError::Lua(error)
    }
}

/// Result of a library function.
pub(super) type LibraryResult = Result<MultiValue, LibraryError>;

/// The error of an argument.
pub(super) fn bad_argument(position: usize, function: &str, problem: &str) -> LibraryError {
    LibraryError::Text(format!(
        "bad argument #{position} to '{function}' ({problem})"
    ))
}

/// An error that a script sees as a string or a table. It passes through Lua as userdata, until the prelude converts it.
#[derive(Debug)]
pub(super) enum RaisedError {
    /// A string.
    Text(String),
    /// A table with the text of an error reply.
    Reply(Vec<u8>),
    /// A table with the error reply of a command, which was counted already.
    CommandReply(Vec<u8>),
}

impl std::error::Error for RaisedError {}

impl fmt::Display for RaisedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RaisedError::Text(text) => f.write_str(text),
            RaisedError::Reply(text) | RaisedError::CommandReply(text) => {
                f.write_str(&String::from_utf8_lossy(text))
            }
        }
    }
}

/// Converts an error that has passed through Lua to the value that a script sees.
pub(super) fn plain(lua: &Lua, problem: Value) -> mlua::Result<Value> {
    let Value::Error(error) = &problem else {
        return Ok(problem);
    };
    if let Some(raised) = raised_in(error) {
        return Ok(match raised {
            RaisedError::Text(text) => Value::String(lua.create_string(text)?),
            RaisedError::Reply(text) => {
                let table = lua.create_table()?;
                table.raw_set("err", lua.create_string(text)?)?;
                Value::Table(table)
            }
            RaisedError::CommandReply(text) => Value::Table(error_table(lua, text)?),
        });
    }
    Ok(Value::String(lua.create_string(message_of(error))?))
}

/// The error that a function has raised, inside the errors of the functions that it has passed through.
fn raised_in(error: &mlua::Error) -> Option<&RaisedError> {
    match error {
        mlua::Error::CallbackError { cause, .. } => raised_in(cause),
        error => error.downcast_ref::<RaisedError>(),
    }
}

/// The message of an error of Lua, without the traceback that mlua adds.
fn message_of(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::CallbackError { cause, .. } => return message_of(cause),
        mlua::Error::RuntimeError(text) => text.clone(),
        other => other.to_string(),
    };
    match text.find("\nstack traceback:") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Adds the function `name` to `table`.
pub(super) fn register(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(&Lua, &Arguments<'_>) -> LibraryResult + 'static,
) -> mlua::Result<()> {
    let owned = name.to_owned();
    let function = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments {
            values,
            function: &owned,
        };
        function(lua, &arguments).map_err(|error| raised(lua, error))
    })?;
    table.raw_set(name, function)
}

/// Adds a function of Lua's own library that checks the time before it runs.
pub(super) fn register_timed(
    lua: &Lua,
    table: &Table,
    library: &str,
    name: &str,
) -> mlua::Result<()> {
    let own: Function = lua.globals().get::<Table>(library)?.raw_get(name)?;
    register(lua, table, name, move |_, args| {
        if checked() {
            return Err(aborted().into());
        }
        own.call::<MultiValue>(args.values.clone())
            .map_err(|error| match raised_in(&error) {
                None if matches!(error, mlua::Error::RuntimeError(_)) => LibraryError::Text(
                    message_of(&error).replace("'?'", &format!("'{}'", args.function)),
                ),
                _ => LibraryError::Lua(error),
            })
    })
}

fn raised(lua: &Lua, error: LibraryError) -> mlua::Error {
    mlua::Error::external(match error {
        LibraryError::Text(text) => RaisedError::Text(match position(lua) {
            Some((_, short, line)) => format!("{short}:{line}: {text}"),
            None => text,
        }),
        LibraryError::Reply(text) => RaisedError::Reply(text.into()),
        LibraryError::Lua(error) => {
            if matches!(error, mlua::Error::MemoryError(_)) {
                with_host(|host| host.note_out_of_memory());
            }
            return error;
        }
    })
}

/// The position of the innermost function of a script: its source, the source's short name and the line.
pub(super) fn position(lua: &Lua) -> Option<(String, String, usize)> {
    /// Levels of the stack that are searched.
    const LEVELS: usize = 16;
    for level in 1..LEVELS {
        let place = lua.inspect_stack(level, |debug| {
            let source = debug.source();
            let line = debug.current_line()?;
            let name = source.source?.into_owned();
            let is_script = source.what != "C" && name != PRELUDE_NAME;
            let short = source.short_src?.into_owned();
            is_script.then_some((name, short, line))
        })?;
        if place.is_some() {
            return place;
        }
    }
    None
}

/// Arguments of a library function. Positions start at 1, as in Lua.
pub(super) struct Arguments<'a> {
    values: MultiValue,
    function: &'a str,
}

impl Arguments<'_> {
    /// Number of arguments.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The argument at `position`; nil if it is missing.
    pub(super) fn value(&self, position: usize) -> &Value {
        self.values.get(position - 1).unwrap_or(&Value::Nil)
    }

    /// The arguments from `position` on.
    pub(super) fn from(&self, position: usize) -> impl Iterator<Item = &Value> {
        self.values.iter().skip(position - 1)
    }

    /// The error of the argument at `position`.
    pub(super) fn bad(&self, position: usize, problem: &str) -> LibraryError {
        bad_argument(position, self.function, problem)
    }

    fn wrong_type(&self, position: usize, expected: &str) -> LibraryError {
        let found = match self.value(position) {
            Value::Nil if position > self.len() => "no value",
            value => value.type_name(),
        };
        let found = if found == "integer" { "number" } else { found };
        self.bad(position, &format!("{expected} expected, got {found}"))
    }

    /// The bytes of the string, or of the number, at `position`.
    pub(super) fn bytes(&self, lua: &Lua, position: usize) -> Result<Vec<u8>, LibraryError> {
        match self.value(position) {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Integer(_) | Value::Number(_) => {
                let text = lua.coerce_string(self.value(position).clone())?;
                Ok(text
                    .map(|text| text.as_bytes().to_vec())
                    .unwrap_or_default())
            }
            _ => Err(self.wrong_type(position, "string")),
        }
    }

    /// The string, or the number as a string, at `position`.
    pub(super) fn string(&self, lua: &Lua, position: usize) -> Result<mlua::String, LibraryError> {
        match self.value(position) {
            Value::String(text) => Ok(text.clone()),
            Value::Integer(_) | Value::Number(_) => {
                let text = lua.coerce_string(self.value(position).clone())?;
                text.ok_or_else(|| self.wrong_type(position, "string"))
            }
            _ => Err(self.wrong_type(position, "string")),
        }
    }

    /// The number at `position`, which may be written as a string.
    pub(super) fn number(&self, lua: &Lua, position: usize) -> Result<f64, LibraryError> {
        match self.value(position) {
            Value::Integer(number) => Ok(*number as f64),
            Value::Number(number) => Ok(*number),
            Value::String(_) => lua
                .coerce_number(self.value(position).clone())?
                .ok_or_else(|| self.wrong_type(position, "number")),
            _ => Err(self.wrong_type(position, "number")),
        }
    }

    /// The number at `position`, truncated to an integer; `absent` if it is missing or nil.
    pub(super) fn integer_or(
        &self,
        lua: &Lua,
        position: usize,
        absent: i64,
    ) -> Result<i64, LibraryError> {
        match self.value(position) {
            Value::Nil => Ok(absent),
            _ => Ok(self.number(lua, position)? as i64),
        }
    }

    /// The number at `position`, truncated to an integer.
    pub(super) fn integer(&self, lua: &Lua, position: usize) -> Result<i64, LibraryError> {
        Ok(self.number(lua, position)? as i64)
    }

    /// Whether the value at `position` counts as true.
    pub(super) fn flag(&self, position: usize) -> bool {
        !matches!(self.value(position), Value::Nil | Value::Boolean(false))
    }
}

/// Results of a function that returns one value.
pub(super) fn one(value: Value) -> LibraryResult {
    Ok(MultiValue::from_vec(vec![value]))
}

/// Results of a function that returns nothing.
pub(super) fn nothing() -> LibraryResult {
    Ok(MultiValue::new())
}
