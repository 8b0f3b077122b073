//! Libraries of functions (FUNCTION LOAD), and the function that the thread of long requests is running.
//!
//! ```text
//!   FUNCTION LOAD ─▶ new Libraries ─▶ file: temporary, sync, rename, sync of the folder ─▶ published ─▶ reply
//! ```
//!
//! The file has the payload of FUNCTION DUMP. It is beside the pool and not in it, because FLUSHALL of a store removes
//! every record at once, and must keep the libraries (decision 020).
//!
//! # Invariants
//! SRV-FUNCTION-1  Published libraries are durable: the file has them before a client can call them. So an acknowledged
//!     change survives a kill and a power cut.
//! SRV-FUNCTION-2  The file is replaced by a rename, so it always has the libraries before a change, or those after it.
//!
//! | a crash | the next start finds |
//! |---|---|
//! | before the rename | the old file; the temporary one is overwritten by the next change |
//! | after the rename, before the sync of the folder | the old file or the new one; the change was not acknowledged |
//! | after the sync of the folder | the new file |

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::durable_file::{FileAccess, replace_file};
use crate::lock::lock;
use crate::lua::functions::FunctionInfo;
use crate::rdb::dump_libraries;

/// Most bytes of the code of all libraries.
pub(crate) const CODE_BYTES_MAX: usize = 64 << 20;
/// Most bytes of a running request that FUNCTION STATS shows.
const SHOWN_BYTES_MAX: usize = 64 << 10;

/// A library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Library {
    /// Number of this load; no other library has it.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) code: Arc<[u8]>,
    pub(crate) functions: Vec<FunctionInfo>,
}

/// All libraries at one moment.
#[derive(Clone, Default, Debug)]
pub(crate) struct Libraries {
    by_name: BTreeMap<String, Arc<Library>>,
    /// Libraries by the names of their functions in lower case, and the functions' positions there.
    by_function: HashMap<String, (Arc<Library>, usize)>,
    code_bytes: usize,
}

/// Why a library was not added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LibraryConflict {
    /// A library has its name.
    Library,
    /// Another library has a function with this name.
    Function(String),
    /// The code of all libraries would be too long.
    TooLong,
}

impl Libraries {
    /// Adds `library`. With `replaces`, it takes the place of a library with its name.
    pub(crate) fn add(
        &mut self,
        library: Arc<Library>,
        replaces: bool,
    ) -> Result<(), LibraryConflict> {
        let old = self.by_name.get(&library.name).cloned();
        if old.is_some() && !replaces {
            return Err(LibraryConflict::Library);
        }
        for function in &library.functions {
            let owner = self.by_function.get(&function.name.to_ascii_lowercase());
            if owner.is_some_and(|(owner, _)| owner.name != library.name) {
                return Err(LibraryConflict::Function(function.name.clone()));
            }
        }
        let old_bytes = old.map_or(0, |old| old.code.len());
        if self.code_bytes - old_bytes + library.code.len() > CODE_BYTES_MAX {
            return Err(LibraryConflict::TooLong);
        }
        self.remove(&library.name);
        for (at, function) in library.functions.iter().enumerate() {
            let name = function.name.to_ascii_lowercase();
            self.by_function.insert(name, (Arc::clone(&library), at));
        }
        self.code_bytes += library.code.len();
        self.by_name.insert(library.name.clone(), library);
        Ok(())
    }

    /// Removes the library `name`. Returns whether it existed.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(library) = self.by_name.remove(name) else {
            return false;
        };
        self.code_bytes -= library.code.len();
        self.by_function
            .retain(|_, (owner, _)| owner.id != library.id);
        true
    }

    /// The function `name`, in either case, and its library.
    pub(crate) fn find(&self, name: &[u8]) -> Option<(&Arc<Library>, &FunctionInfo)> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        let (library, at) = self.by_function.get(&name)?;
        Some((library, &library.functions[*at]))
    }

    /// The libraries in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// Number of libraries.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Number of functions.
    pub(crate) fn functions(&self) -> usize {
        self.by_function.len()
    }

    /// Bytes of the code of all libraries.
    pub(crate) fn code_bytes(&self) -> usize {
        self.code_bytes
    }

    /// The payload of FUNCTION DUMP.
    pub(crate) fn dump(&self) -> Vec<u8> {
        dump_libraries(self.iter().map(|library| &*library.code))
    }
}

/// The function that the thread of long requests is running.
#[derive(Clone, Debug)]
pub(crate) struct RunningFunction {
    pub(crate) name: String,
    /// The first arguments of the request, including the command.
    pub(crate) command: Vec<Vec<u8>>,
}

/// The libraries of the server, and the running function.
#[derive(Default)]
pub(crate) struct FunctionRegistry {
    current: Mutex<Arc<Libraries>>,
    /// Number of changes so far.
    changes: AtomicU64,
    last_id: AtomicU64,
    /// Where the libraries are kept; `None`: in memory only.
    file: Option<PathBuf>,
    running: Mutex<Option<RunningFunction>>,
}

impl FunctionRegistry {
    /// Creates a registry that keeps the libraries in `file`.
    pub(crate) fn new(file: Option<PathBuf>) -> FunctionRegistry {
        FunctionRegistry {
            file,
            ..FunctionRegistry::default()
        }
    }

    /// Reads the file. Returns `None` if there is none.
    pub(crate) fn read_file(&self) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        match fs::read(file) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The path of the file, for errors.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The libraries now.
    pub(crate) fn current(&self) -> Arc<Libraries> {
        Arc::clone(&lock(&self.current))
    }

    /// Number of changes so far. A thread that has seen another number forgets its compiled functions.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns a number for a library that is being loaded.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Publishes libraries that the file has already.
    pub(crate) fn publish(&self, libraries: Libraries) {
        *lock(&self.current) = Arc::new(libraries);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes the file, then publishes `libraries` (SRV-FUNCTION-1). Only one thread changes libraries: the thread of long
    /// requests.
    ///
    /// # Errors
    /// The file could not be replaced. The libraries are unchanged, unless the error is that of the folder's sync: then
    /// the next start may find the new ones.
    pub(crate) fn replace(&self, libraries: Libraries) -> io::Result<()> {
        if let Some(file) = &self.file {
            replace_file(file, &libraries.dump(), FileAccess::Private)?;
        }
        self.publish(libraries);
        Ok(())
    }

    /// Records the start of a function, or with `None` its end.
    pub(crate) fn note_running(&self, running: Option<RunningFunction>) {
        *lock(&self.running) = running;
    }

    /// The running function.
    pub(crate) fn running(&self) -> Option<RunningFunction> {
        lock(&self.running).clone()
    }
}

impl RunningFunction {
    /// Describes the request `words`, which calls the function `name`.
    pub(crate) fn new<'a>(name: &str, words: impl Iterator<Item = &'a [u8]>) -> RunningFunction {
        let (mut command, mut bytes) = (Vec::new(), 0);
        for word in words {
            bytes += word.len() + size_of::<Vec<u8>>();
            if bytes > SHOWN_BYTES_MAX {
                break;
            }
            command.push(word.to_vec());
        }
        RunningFunction {
            name: name.to_owned(),
            command,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lua::functions::FLAG_NAMES;

    fn library(id: u64, name: &str, functions: &[&str]) -> Arc<Library> {
        let functions = functions.iter().map(|name| FunctionInfo {
            name: (*name).to_owned(),
            description: None,
            flags: [false; FLAG_NAMES.len()],
        });
        Arc::new(Library {
            id,
            name: name.to_owned(),
            code: name.as_bytes().into(),
            functions: functions.collect(),
        })
    }

    #[test]
    fn names_of_functions_belong_to_one_library() {
        let mut all = Libraries::default();
        all.add(library(1, "one", &["f", "G"]), false).unwrap();
        let taken = LibraryConflict::Function("g".to_owned());
        assert_eq!(all.add(library(2, "two", &["h", "g"]), false), Err(taken));
        assert_eq!(
            all.add(library(3, "one", &["h"]), false),
            Err(LibraryConflict::Library)
        );
        assert!(all.find(b"h").is_none());
        all.add(library(4, "one", &["h"]), true).unwrap();
        assert!(all.find(b"f").is_none());
        assert_eq!(all.find(b"H").unwrap().0.id, 4);
        assert_eq!((all.len(), all.functions(), all.code_bytes()), (1, 1, 3));
        assert!(all.remove("one") && !all.remove("one"));
        assert_eq!((all.len(), all.functions(), all.code_bytes()), (0, 0, 0));
    }

    #[test]
    fn a_published_change_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("functions");
        let registry = FunctionRegistry::new(Some(file.clone()));
        assert_eq!(registry.read_file().unwrap(), None);
        let mut all = Libraries::default();
        all.add(library(1, "one", &["f"]), false).unwrap();
        registry.replace(all.clone()).unwrap();
        assert_eq!(registry.read_file().unwrap(), Some(all.dump()));
        assert_eq!(registry.current().len(), 1);
        // A file that cannot be written leaves the libraries unchanged.
        let registry = FunctionRegistry::new(Some(folder.path().join("none/functions")));
        assert!(registry.replace(all).is_err());
        assert_eq!(registry.current().len(), 0);
    }
}
