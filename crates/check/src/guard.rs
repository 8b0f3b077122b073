//! A panic of what is checked is a finding like others: it is reported with its place, and not printed.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Calls of [`guarded`] that this thread is in.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic in one of them was, if it did not come from another thread.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `f` returns; a panic is an error that says where it was, and is not printed.
pub fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, String> {
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

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let at = PLACE.take().map(|place| format!(" at {place}"));
    let (at, text) = (at.unwrap_or_default(), text.unwrap_or("without a message"));
    format!("panic{at}: {text}")
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn a_panic_is_an_error_that_says_where() {
        let (word, line) = (7, line!() + 1);
        let said = guarded(|| panic!("word {word} is damaged")).map_err(|said: String| {
            let (at, text) = said.split_once(": ").expect("a place and a text");
            (
                at.starts_with(&format!("panic at {}:{line}:", file!())),
                text.to_owned(),
            )
        });
        assert_eq!(said, Err::<(), _>((true, "word 7 is damaged".into())));
    }

    #[test]
    fn one_inside_another_is_its_own() {
        let outer = guarded(|| guarded(|| panic!("inner")).map_err(|_: String| "heard"));
        assert_eq!(outer, Ok(Err::<(), _>("heard")));
        let thread = std::thread::spawn(|| panic!("elsewhere")).join();
        let said = guarded(|| std::panic::resume_unwind(thread.unwrap_err()));
        assert_eq!(said, Err::<(), _>("panic: elsewhere".into()));
    }
}
