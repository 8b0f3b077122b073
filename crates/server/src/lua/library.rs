//! Registration of library functions, and the errors that they raise.

use mlua::{Lua, MultiValue, Table, Value};

use super::engine::PRELUDE_NAME;
use super::host::with_host;

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

/// Adds the function `name` to `table`, for the prelude: it returns `true` and its results, or `false` and the error to
/// be raised.
pub(super) fn register(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(&Lua, &Arguments) -> LibraryResult + 'static,
) -> mlua::Result<()> {
    let owned = name.to_owned();
    let function = lua.create_function(move |lua, values: MultiValue| {
        let arguments = Arguments {
            values,
            function: &owned,
        };
        match function(lua, &arguments) {
            Ok(mut results) => {
                results.push_front(Value::Boolean(true));
                Ok(results)
            }
            Err(error) => raised(lua, error),
        }
    })?;
    table.raw_set(name, function)
}

fn raised(lua: &Lua, error: LibraryError) -> mlua::Result<MultiValue> {
    let value = match error {
        LibraryError::Text(text) => {
            let text = match position(lua) {
                Some((_, short, line)) => format!("{short}:{line}: {text}"),
                None => text,
            };
            Value::String(lua.create_string(text)?)
        }
        LibraryError::Reply(text) => {
            let table = lua.create_table()?;
            table.raw_set("err", text)?;
            Value::Table(table)
        }
        LibraryError::Lua(error) => {
            if matches!(error, mlua::Error::MemoryError(_)) {
                with_host(|host| host.note_out_of_memory());
            }
            return Err(error);
        }
    };
    Ok(MultiValue::from_vec(vec![Value::Boolean(false), value]))
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
                Ok(text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
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

    /// The table at `position`.
    pub(super) fn table(&self, position: usize) -> Result<&Table, LibraryError> {
        match self.value(position) {
            Value::Table(table) => Ok(table),
            _ => Err(self.wrong_type(position, "table")),
        }
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
