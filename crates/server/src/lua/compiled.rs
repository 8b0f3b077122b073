//! What a Lua state has compiled: scripts, and the functions of libraries.

use std::collections::HashMap;
use std::rc::Rc;

use mlua::{Function, Table};

use super::shebang::ScriptFlags;

/// A compiled script, or a function of a library.
pub(crate) struct CompiledScript {
    /// Its SHA1 in hexadecimal digits, or the function's name.
    pub(crate) name: String,
    pub(crate) flags: ScriptFlags,
    /// Whether it is a function of a library, which gets the keys and the arguments as parameters.
    pub(crate) is_function: bool,
    pub(super) function: Function,
}

/// Libraries and functions of a state.
pub(super) struct FunctionCache {
    /// Calls a function with keys and arguments.
    pub(super) call: Function,
    pub(super) load_library: Function,
    /// Callbacks of libraries by the libraries' numbers.
    pub(super) libraries: HashMap<u64, Table>,
    /// Functions by the names with which clients have called them.
    pub(super) by_name: HashMap<Vec<u8>, Rc<CompiledScript>>,
    /// Number of changes of libraries before these were loaded.
    pub(super) changes: u64,
}

impl FunctionCache {
    pub(super) fn new(call: Function, load_library: Function) -> FunctionCache {
        FunctionCache {
            call,
            load_library,
            libraries: HashMap::new(),
            by_name: HashMap::new(),
            changes: 0,
        }
    }
}
