//! Libraries of functions that a Lua state has loaded.
//!
//! A library runs once in each state that calls one of its functions. It registers functions with `redis.register_function`
//! and can do nothing else (see `prelude.lua`). A state keeps the callbacks of a library in one Lua table.

use std::rc::Rc;

use mlua::{Table, Value};

use super::compiled::CompiledScript;
use super::engine::ScriptEngine;
use super::host::{HOST, ScriptHost};
use super::shebang::ScriptFlags;

/// Names of the flags of a function, in the order of Redis's replies.
pub(crate) const FLAG_NAMES: [&str; 5] = [
    "no-writes",
    "allow-oom",
    "allow-stale",
    "no-cluster",
    "allow-cross-slot-keys",
];

/// A function that a library has registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FunctionInfo {
    pub(crate) name: String,
    pub(crate) description: Option<Vec<u8>>,
    /// Which of [`FLAG_NAMES`] it has.
    pub(crate) flags: [bool; FLAG_NAMES.len()],
}

/// Most functions that a state keeps ready. Each takes a slot of mlua's stack of 8,000 slots.
const FUNCTIONS_MAX: usize = 400;
/// Most libraries that a state keeps.
const LIBRARIES_MAX: usize = 400;

/// Why a library was not loaded.
pub(crate) enum LoadError {
    /// The text of the error reply.
    Refused(Vec<u8>),
    /// Its host has aborted it.
    Aborted,
}

/// What a library has registered.
pub(crate) struct LoadedLibrary {
    callbacks: Table,
    pub(crate) functions: Vec<FunctionInfo>,
}

impl ScriptEngine {
    /// Forgets all libraries if they have changed since the state has loaded them.
    pub(crate) fn follow_changes(&mut self, changes: u64) {
        if self.functions.changes != changes {
            self.functions.libraries.clear();
            self.functions.by_name.clear();
            self.functions.changes = changes;
        }
    }

    /// Returns the function that clients call by `name`, if the state has it ready.
    #[inline]
    pub(crate) fn find_function(&self, name: &[u8]) -> Option<Rc<CompiledScript>> {
        self.functions.by_name.get(name).cloned()
    }

    /// Whether the state has loaded the library with this number.
    pub(crate) fn has_library(&self, id: u64) -> bool {
        self.functions.libraries.contains_key(&id)
    }

    /// Keeps a loaded library under its number.
    pub(crate) fn keep_library(&mut self, id: u64, library: LoadedLibrary) {
        if self.functions.libraries.len() >= LIBRARIES_MAX {
            self.functions.libraries.clear();
        }
        self.functions.libraries.insert(id, library.callbacks);
    }

    /// Makes a function of a kept library ready. Returns `None` if the library does not have it.
    pub(crate) fn ready_function(
        &mut self,
        id: u64,
        info: &FunctionInfo,
        called: &[u8],
    ) -> Option<Rc<CompiledScript>> {
        let callbacks = self.functions.libraries.get(&id)?;
        let function = callbacks.raw_get(info.name.to_ascii_lowercase()).ok()?;
        let script = Rc::new(CompiledScript {
            name: info.name.clone(),
            flags: ScriptFlags {
                no_writes: info.flags[0],
                allow_oom: info.flags[1],
                is_unknown: false,
            },
            is_function: true,
            function,
        });
        if self.functions.by_name.len() >= FUNCTIONS_MAX {
            self.functions.by_name.clear();
        }
        self.functions
            .by_name
            .insert(called.to_vec(), Rc::clone(&script));
        Some(script)
    }

    /// Loads a library from its source without the shebang. `host` limits its time and memory; without one, nothing
    /// limits its time.
    pub(crate) fn load_library(
        &mut self,
        source: &[u8],
        host: Option<&mut (dyn ScriptHost + '_)>,
    ) -> Result<LoadedLibrary, LoadError> {
        self.json.reset();
        self.limit_memory();
        let load = || {
            let source = self.lua.create_string(source)?;
            let load = &self.functions.load_library;
            load.call::<(Value, Option<Table>, Option<Table>)>(source)
        };
        let (loaded, is_aborted) = match host {
            Some(host) => {
                let loaded = HOST.set(&mut *host, load);
                (loaded, host.is_aborted())
            }
            None => (load(), false),
        };
        self.lift_limit();
        if is_aborted {
            return Err(LoadError::Aborted);
        }
        let loaded = loaded.and_then(|(problem, callbacks, list)| {
            if let Value::String(problem) = &problem {
                return Ok(Err([b"ERR Error ", &problem.as_bytes()[..]].concat()));
            }
            let (Some(callbacks), Some(list)) = (callbacks, list) else {
                return Ok(Err(b"ERR No functions registered".to_vec()));
            };
            let functions = list.sequence_values::<Table>().map(|row| info_of(&row?));
            Ok(Ok(LoadedLibrary {
                callbacks,
                functions: functions.collect::<mlua::Result<_>>()?,
            }))
        });
        match loaded {
            Ok(Ok(library)) if library.functions.is_empty() => {
                Err(LoadError::Refused(b"ERR No functions registered".to_vec()))
            }
            Ok(Ok(library)) => Ok(library),
            Ok(Err(text)) => Err(LoadError::Refused(text)),
            Err(error) => Err(LoadError::Refused(
                format!("ERR Error registering functions: {error}").into_bytes(),
            )),
        }
    }
}

/// Reads a row of the prelude's list: name, description, flags.
fn info_of(row: &Table) -> mlua::Result<FunctionInfo> {
    let description: Value = row.raw_get(2)?;
    let mut flags = [false; FLAG_NAMES.len()];
    for (at, flag) in flags.iter_mut().enumerate() {
        *flag = row.raw_get::<Option<bool>>(at + 3)?.unwrap_or(false);
    }
    Ok(FunctionInfo {
        name: row.raw_get(1)?,
        description: match description {
            Value::String(text) => Some(text.as_bytes().to_vec()),
            _ => None,
        },
        flags,
    })
}
