//! Turns a panic of a checked structure into an error with its location, which is reported like any violation and not
//! printed.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use crate::Violation;

thread_local! {
    /// Number of nested [`guarded`] calls of this thread.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    /// Location of the last panic in such a call. `None` if the panic was resumed from another thread.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Returns the result of `f`. A panic becomes an error that names its location and message, and is not printed.
pub fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Violation> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| match GUARDS.get() {
            0 => others(info),
            _ => PLACE.set(info.location().map(ToString::to_string)),
        }));
    });
    GUARDS.set(GUARDS.get() + 1);
    let ended = panic::catch_unwind(AssertUnwindSafe(f));
    GUARDS.set(GUARDS.get() - 1);
    ended.map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> Violation {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let at = PLACE.take().map(|place| format!(" at {place}"));
    let (at, text) = (at.unwrap_or_default(), text.unwrap_or("without a message"));
    Violation::new(format!("panic{at}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::guarded;
    use crate::Violation;

    #[test]
    fn a_panic_becomes_an_error_with_its_location() {
        let (word, line) = (7, line!() + 1);
        let said = guarded(|| panic!("word {word} is damaged")).map_err(|said| {
            let said = said.to_string();
            let (at, text) = said.split_once(": ").expect("a place and a text");
            (
                at.starts_with(&format!("panic at {}:{line}:", file!())),
                text.to_owned(),
            )
        });
        assert_eq!(said, Err::<(), _>((true, "word 7 is damaged".into())));
    }

    #[test]
    fn a_nested_call_catches_its_own_panic_and_a_resumed_panic_has_no_location() {
        let outer = guarded(|| guarded(|| panic!("inner")).map_err(|_| "heard"));
        assert_eq!(outer, Ok(Err::<(), _>("heard")));
        let thread = std::thread::spawn(|| panic!("elsewhere")).join();
        let said = guarded(|| std::panic::resume_unwind(thread.unwrap_err()));
        assert_eq!(said, Err::<(), _>(Violation::new("panic: elsewhere")));
    }
}
