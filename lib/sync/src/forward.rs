//! Wrappers of a trait's object.

/// Implements methods of a trait, whose signatures follow, by those of `$to`. It stands in the `impl` of a wrapper beside the
/// methods that the wrapper changes. With `#[deny(clippy::missing_trait_methods)]` before that `impl`, a method that the
/// trait gains with a default is an error there too, instead of one that never reaches what is wrapped.
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
///     sync::forward! { self.0:
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
