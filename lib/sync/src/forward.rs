//! Wrappers of trait objects.

/// Implements the methods of a trait with the given signatures by calls to `$to`. Used in the `impl` of a wrapper
/// beside the methods that the wrapper changes. With `#[deny(clippy::missing_trait_methods)]` on that `impl`, a new
/// trait method with a default is an error there too, instead of silently bypassing the wrapped object.
///
/// ```
/// trait Greeter {
///     fn greet(&self, name: &str) -> String;
///     fn count(&mut self) {}
/// }
/// struct Loud<G>(G);
/// #[deny(clippy::missing_trait_methods)]
/// impl<G: Greeter> Greeter for Loud<G> {
///     fn greet(&self, name: &str) -> String {
///         self.0.greet(name).to_uppercase()
///     }
///     ironverbs_sync::forward! { self.0:
///         fn count(&mut self);
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($object:ident.$field:tt: $(fn $name:ident(&$($this:ident)+ $(, $arg:ident: $type:ty)*) $(-> $result:ty)?;)+) => {
        $(
            #[inline]
            fn $name(&$($this)+ $(, $arg: $type)*) $(-> $result)? {
                $object.$field.$name($($arg),*)
            }
        )+
    };
}
