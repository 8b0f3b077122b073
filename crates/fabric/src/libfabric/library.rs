//! [`Library`]: libfabric, loaded when it is needed, and the providers that it offers.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::net::IpAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use farbank_pm::sync::lock;

use super::LibfabricError;
use super::abi::{
    API_VERSION, DupInfoFn, FI_ATOMIC, FI_CONTEXT, FI_CONTEXT2, FI_EP_RDM, FI_MR_ALLOCATED,
    FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG, FI_ORDER_ATOMIC_WAW, FI_ORDER_WAW, FI_PROGRESS_MANUAL,
    FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_SOURCE, FI_THREAD_DOMAIN, FI_WRITE,
    FabricFn, FreeInfoFn, GetInfoFn, Info, StrErrorFn, VersionFn,
};
use super::signals::SignalHandlers;

/// `-ENOMEM`.
const NO_MEMORY: i64 = -12;
/// File name of the library, for the dynamic linker.
const LIBRARY: &str = "libfabric.so.1";

/// The loaded library.
pub(super) struct Library {
    get_info: GetInfoFn,
    free_info: FreeInfoFn,
    dup_info: DupInfoFn,
    pub(super) open_fabric: FabricFn,
    str_error: StrErrorFn,
    version: u32,
    /// Providers that were found. An inquiry takes about a tenth of a second.
    found: Mutex<HashMap<(String, Option<Near>), ProviderInfo>>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "Library({major}.{minor})")
    }
}

impl Library {
    /// Returns the library, which the first call loads. It stays loaded until the end of the process.
    ///
    /// # Errors
    /// It is not installed, or is older than 1.17.
    pub(super) fn load() -> Result<Arc<Library>, LibfabricError> {
        static LOADED: Mutex<Option<Arc<Library>>> = Mutex::new(None);
        // Two threads that open it together would save each other's signal handlers.
        let mut loaded = lock(&LOADED);
        if let Some(library) = &*loaded {
            return Ok(Arc::clone(library));
        }
        let library = Library::open()?;
        *loaded = Some(Arc::clone(&library));
        Ok(library)
    }

    fn open() -> Result<Arc<Library>, LibfabricError> {
        let handlers = SignalHandlers::save();
        // SAFETY: the initialization of libfabric has no preconditions.
        let loaded = unsafe { libloading::Library::new(LIBRARY) };
        handlers.restore();
        let loaded = loaded.map_err(LibfabricError::NotInstalled)?;
        // SAFETY: the type is the one of the function of this name in `rdma/fabric.h`.
        let version = unsafe {
            *loaded
                .get::<VersionFn>(c"fi_version")
                .map_err(LibfabricError::NotInstalled)?
        };
        // SAFETY: the function has no preconditions.
        let version = unsafe { version() };
        if version < API_VERSION {
            let (major, minor) = (version >> 16, version & 0xffff);
            return Err(LibfabricError::TooOld { major, minor });
        }
        // SAFETY: the types are those of the functions of these names in `rdma/fabric.h`. The dynamic linker returns the default
        // version of each symbol, which is the one that a program is linked with.
        let library = unsafe { Library::with_functions(&loaded, version) };
        let library = library.map_err(LibfabricError::NotInstalled)?;
        // Some providers do not survive that their code is unloaded.
        std::mem::forget(loaded);
        Ok(Arc::new(library))
    }

    /// Finds the functions.
    ///
    /// # Safety
    /// `loaded` is libfabric, and stays loaded as long as the result exists.
    unsafe fn with_functions(
        loaded: &libloading::Library,
        version: u32,
    ) -> Result<Library, libloading::Error> {
        // SAFETY: the caller guarantees that the functions are those of libfabric.
        unsafe {
            Ok(Library {
                get_info: *loaded.get(c"fi_getinfo")?,
                free_info: *loaded.get(c"fi_freeinfo")?,
                dup_info: *loaded.get(c"fi_dupinfo")?,
                open_fabric: *loaded.get(c"fi_fabric")?,
                str_error: *loaded.get(c"fi_strerror")?,
                version,
                found: Mutex::default(),
            })
        }
    }

    /// Returns the major and the minor version.
    pub(super) fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// Returns the error of a call that returned `code`.
    pub(super) fn error(&self, doing: &'static str, code: i64) -> LibfabricError {
        // SAFETY: takes any number, and returns a string that is never freed.
        let text = unsafe { CStr::from_ptr((self.str_error)(code.unsigned_abs() as i32)) };
        LibfabricError::Call {
            doing,
            code,
            text: text.to_string_lossy().into_owned(),
        }
    }

    /// Returns the names of the providers that have what the fabric needs.
    pub(super) fn providers(self: &Arc<Library>) -> Vec<String> {
        let mut names: Vec<String> = self
            .query(None, None)
            .map(|info| info.names())
            .unwrap_or_default();
        names.sort();
        names.dedup();
        names
    }

    /// Finds `provider`, with an endpoint at the address `near` of this host or in its direction.
    ///
    /// # Errors
    /// The library has no such provider, or it lacks what the fabric needs.
    pub(super) fn find(
        self: &Arc<Library>,
        provider: &str,
        near: Option<Near>,
    ) -> Result<ProviderInfo, LibfabricError> {
        let near = near.filter(|_| has_ip_addresses(provider));
        let name = (provider.to_owned(), near);
        // Other threads wait for the inquiry.
        let mut known = lock(&self.found);
        if let Some(info) = known.get(&name) {
            return info.copy();
        }
        let found = self.query(Some(provider), near);
        let found = found.ok_or_else(|| LibfabricError::NoProvider {
            wanted: provider.into(),
            found: self.providers(),
        })?;
        known.insert(name, found.copy()?);
        Ok(found)
    }

    fn query(
        self: &Arc<Library>,
        provider: Option<&str>,
        near: Option<Near>,
    ) -> Option<ProviderInfo> {
        // SAFETY: `fi_dupinfo` of null allocates an empty structure with all its parts.
        let hints = NonNull::new(unsafe { (self.dup_info)(ptr::null()) })?;
        let hints = ProviderInfo {
            library: Arc::clone(self),
            info: hints,
        };
        hints.require(provider)?;
        let (node, flags) = match near {
            None => (None, 0),
            Some(Near::Own(ip)) => (Some(ip), FI_SOURCE),
            Some(Near::Peer(ip)) => (Some(ip), 0),
        };
        let node = node.map(|ip| CString::new(ip.to_string()).expect("no zero in an IP address"));
        // A service selects the format of the address; port 0 is any port.
        let service = node.as_ref().map(|_| c"0");
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let service = service.map_or(ptr::null(), CStr::as_ptr);
        let mut found = ptr::null_mut();
        // SAFETY: the strings and the hints are valid during the call. The library allocates the result, which `ProviderInfo`
        // frees.
        let code = unsafe {
            (self.get_info)(
                API_VERSION,
                node,
                service,
                flags,
                hints.info.as_ptr(),
                &raw mut found,
            )
        };
        let info = NonNull::new(found).filter(|_| code == 0)?;
        Some(ProviderInfo {
            library: Arc::clone(self),
            info,
        })
    }
}

/// Address by which an endpoint is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Near {
    /// The endpoint has this address of this host.
    Own(IpAddr),
    /// The endpoint can reach this address.
    Peer(IpAddr),
}

/// Returns whether endpoints of `provider` have IP addresses.
fn has_ip_addresses(provider: &str) -> bool {
    ["tcp", "net", "verbs"].iter().any(|core| {
        provider
            .strip_prefix(core)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(';'))
    })
}

/// Order of writes and atomics that a provider grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WriteOrder {
    /// Longest write that takes effect before later writes, in bytes. 0: none.
    pub(super) bytes_max: usize,
}

/// A provider and its attributes. Frees them when it is dropped.
pub(super) struct ProviderInfo {
    pub(super) library: Arc<Library>,
    info: NonNull<Info>,
}

// SAFETY: the structure and all its parts belong to this value alone, and no function of the library depends on the thread.
unsafe impl Send for ProviderInfo {}

impl ProviderInfo {
    pub(super) fn as_ptr(&self) -> *mut Info {
        self.info.as_ptr()
    }

    /// Returns a copy, for another endpoint.
    fn copy(&self) -> Result<ProviderInfo, LibfabricError> {
        // SAFETY: a valid structure, of which the library allocates a copy, or returns null without memory.
        let copy = NonNull::new(unsafe { (self.library.dup_info)(self.info.as_ptr()) });
        match copy {
            Some(info) => Ok(ProviderInfo {
                library: Arc::clone(&self.library),
                info,
            }),
            None => Err(self
                .library
                .error("copy the attributes of a provider", NO_MEMORY)),
        }
    }

    fn info(&self) -> &Info {
        // SAFETY: the library allocated the structure, and only `Drop` frees it.
        unsafe { self.info.as_ref() }
    }

    /// Fills in the requirements of the fabric. Returns `None` if the library has allocated an incomplete structure.
    fn require(&self, provider: Option<&str>) -> Option<()> {
        // SAFETY: as for `info`. No other reference exists during this call.
        let info = unsafe { &mut *self.info.as_ptr() };
        info.caps = FI_MSG | FI_RMA | FI_ATOMIC;
        info.caps |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        info.mode = FI_CONTEXT | FI_CONTEXT2;
        // SAFETY: `fi_dupinfo` of null allocates these parts, or leaves null without memory.
        let (ep, domain, fabric) = unsafe {
            (
                info.ep_attr.as_mut()?,
                info.domain_attr.as_mut()?,
                info.fabric_attr.as_mut()?,
            )
        };
        ep.ep_type = FI_EP_RDM;
        domain.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        domain.threading = FI_THREAD_DOMAIN;
        domain.control_progress = FI_PROGRESS_MANUAL;
        domain.data_progress = FI_PROGRESS_MANUAL;
        if let Some(provider) = provider {
            fabric.prov_name = duplicate(provider)?;
        }
        Some(())
    }

    /// Returns the names of the providers in the list that begins here.
    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut next = self.info.as_ptr();
        // SAFETY: a list of structures that the library has allocated, which ends with null.
        while let Some(info) = unsafe { next.as_ref() } {
            // SAFETY: null or a structure of the same allocation.
            if let Some(fabric) = unsafe { info.fabric_attr.as_ref() }
                && !fabric.prov_name.is_null()
            {
                // SAFETY: a string of the same allocation.
                let name = unsafe { CStr::from_ptr(fabric.prov_name) };
                names.push(name.to_string_lossy().into_owned());
            }
            next = info.next;
        }
        names
    }

    /// Returns the name of the provider.
    pub(super) fn name(&self) -> String {
        self.names().into_iter().next().unwrap_or_default()
    }

    /// Returns whether the provider has `bit` in its mode of memory registration.
    pub(super) fn has_mr_mode(&self, bit: i32) -> bool {
        // SAFETY: null or a structure of the same allocation.
        let domain = unsafe { self.info().domain_attr.as_ref() };
        domain.is_some_and(|domain| domain.mr_mode & bit != 0)
    }

    /// Returns the bytes of a key of the provider's memory registrations.
    pub(super) fn key_bytes(&self) -> usize {
        // SAFETY: null or a structure of the same allocation.
        let domain = unsafe { self.info().domain_attr.as_ref() };
        domain.map_or(0, |domain| domain.mr_key_size)
    }

    /// Returns whether the provider executes verbs only when a program calls it.
    pub(super) fn is_manual(&self) -> bool {
        // SAFETY: null or a structure of the same allocation.
        let domain = unsafe { self.info().domain_attr.as_ref() };
        domain.is_some_and(|domain| domain.data_progress == FI_PROGRESS_MANUAL)
    }

    /// Returns the order of writes that the provider grants to atomics, by which the fabric writes.
    pub(super) fn write_order(&self) -> WriteOrder {
        // SAFETY: null or structures of the same allocation.
        let (tx, ep) = unsafe { (self.info().tx_attr.as_ref(), self.info().ep_attr.as_ref()) };
        match (tx, ep) {
            (Some(tx), Some(ep)) if tx.msg_order & (FI_ORDER_WAW | FI_ORDER_ATOMIC_WAW) != 0 => {
                WriteOrder {
                    bytes_max: ep.max_order_waw_size,
                }
            }
            _ => WriteOrder::default(),
        }
    }
}

impl Drop for ProviderInfo {
    fn drop(&mut self) {
        // SAFETY: the library allocated the structure, and nothing uses it any more.
        unsafe { (self.library.free_info)(self.info.as_ptr()) };
    }
}

/// Returns a copy of `text` in memory of the C library, which `fi_freeinfo` frees.
fn duplicate(text: &str) -> Option<*mut std::ffi::c_char> {
    unsafe extern "C" {
        fn strdup(text: *const std::ffi::c_char) -> *mut std::ffi::c_char;
    }
    let text = CString::new(text).ok()?;
    // SAFETY: a string that ends with zero.
    let copy = unsafe { strdup(text.as_ptr()) };
    (!copy.is_null()).then_some(copy)
}
