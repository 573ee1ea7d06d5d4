//! Which files of a crate need each other in a circle: a reader of one has to read them all. Circles of more than three
//! files stand in docs/README.md with a reason, and no others are there.
//!
//! A file needs another where a path in its code leads there. Where it declares a module, or passes a name on by `pub use`,
//! it needs nobody; who uses such a name needs the file that defines it. Tests do not count.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};
use syn::{Attribute, Item, UseTree, Visibility, visit::Visit};

/// Files that a reader can take in at once, however they need each other.
const BEARABLE: usize = 3;
/// The heading in docs/README.md under which circles are argued.
const ARGUED: &str = "## Files that need each other";

type Name = Vec<String>;

/// The names in a module.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// Names it defines.
    defines: BTreeSet<String>,
    /// Names it takes from elsewhere, and the paths these lead to.
    takes: HashMap<String, Name>,
    /// Paths all names of which it takes.
    takes_all: Vec<Name>,
    /// Paths that its code names.
    names: Vec<Name>,
}

/// The modules of a crate by their paths; the root's is empty.
#[derive(Default)]
struct Crate(BTreeMap<Name, Module>);

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        attribute.path().is_ident("cfg") && {
            let words = list.tokens.to_string();
            words.contains("test") && !words.contains("not")
        }
    })
}

fn joined(module: &[String], name: &str) -> Name {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut modules = Self::default();
        modules.add_file(root, &Name::new(), root.parent().expect("a file is in a directory"));
        modules
    }

    /// Reads a module's file; those of its children lie in `home`.
    fn add_file(&mut self, file: &Path, path: &Name, home: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.add(&parsed.items, file, path, home);
    }

    fn add(&mut self, items: &[Item], file: &Path, path: &Name, home: &Path) {
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            match item {
                Item::Mod(inner) if !is_for_tests(&inner.attrs) => {
                    let name = inner.ident.to_string();
                    let (path, home) = (joined(path, &name), home.join(&name));
                    match &inner.content {
                        Some((_, items)) => self.add(items, file, &path, &home),
                        None => {
                            let beside = home.with_extension("rs");
                            let file = if beside.exists() { beside } else { home.join("mod.rs") };
                            // Some are made by build scripts, or have their place in an attribute.
                            if file.exists() {
                                self.add_file(&file, &path, &home);
                            }
                        }
                    }
                }
                Item::Use(item) if !is_for_tests(&item.attrs) => {
                    let passes_on = !matches!(item.vis, Visibility::Inherited);
                    module.take(&item.tree, &mut Name::new(), passes_on);
                }
                Item::Mod(_) | Item::Use(_) => {}
                item => module.visit_item(item),
            }
        }
        self.0.insert(path.clone(), module);
    }

    /// The file that defines what the path `name` in `module` leads to; `None` for what is not this crate's.
    fn file_of(&self, module: &[String], name: &[String]) -> Option<&Path> {
        self.follow(module, name, &mut BTreeSet::new())
    }

    /// The same, where `asked` has been asked already: names may be passed on in a circle.
    fn follow(
        &self,
        module: &[String],
        name: &[String],
        asked: &mut BTreeSet<(Name, Name)>,
    ) -> Option<&Path> {
        if !asked.insert((module.to_vec(), name.to_vec())) {
            return None;
        }
        let first_asked = asked.len() == 1;
        let (at, rest) = self.descend(module, name)?;
        let anchored = rest.len() < name.len();
        let here = self.0.get(&at)?;
        // A path to a module needs nothing yet: a name in it does.
        let [first, more @ ..] = rest else { return None };
        if here.defines.contains(first) {
            return Some(&here.file);
        }
        if let Some(target) = here.takes.get(first) {
            // Another crate's: a name is not taken from itself.
            if target.first() == Some(first) {
                return None;
            }
            let target: Name = target.iter().chain(more).cloned().collect();
            return self.follow(&at, &target, asked);
        }
        let found = here.takes_all.iter().find_map(|all| {
            let (all, []) = self.descend(&at, all)? else { return None };
            self.follow(&all, rest, asked).filter(|file| *file != here.file)
        });
        found.or_else(|| (anchored && first_asked).then_some(here.file.as_path()))
    }

    /// The module that the first names of a path in `module` lead to, and the names left.
    fn descend<'n>(&self, module: &[String], name: &'n [String]) -> Option<(Name, &'n [String])> {
        let (mut at, mut rest) = (module.to_vec(), name);
        while let [first, more @ ..] = rest {
            let child = joined(&at, first);
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop()?;
                }
                _ if self.0.contains_key(&child) => at = child,
                _ => break,
            }
            rest = more;
        }
        Some((at, rest))
    }

    /// Which file needs which.
    fn needs(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut needs: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (path, module) in &self.0 {
            let needed = needs.entry(&module.file).or_default();
            let files = module.names.iter().filter_map(|name| self.file_of(path, name));
            needed.extend(files.filter(|file| *file != module.file));
        }
        needs
    }
}

impl Module {
    /// Notes what a `use` takes, and as a path of the code what it does not pass on.
    fn take(&mut self, tree: &UseTree, before: &mut Name, passes_on: bool) {
        let taken = |this: &mut Self, name: String, ident: &syn::Ident| {
            let mut path = before.clone();
            if ident != "self" {
                path.push(ident.to_string());
            }
            this.takes.insert(name, path.clone());
            if !passes_on {
                this.names.push(path);
            }
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take(&path.tree, before, passes_on);
                before.pop();
            }
            UseTree::Name(name) if name.ident == "self" => {
                let last = before.last().cloned().unwrap_or_default();
                taken(self, last, &name.ident);
            }
            UseTree::Name(name) => taken(self, name.ident.to_string(), &name.ident),
            UseTree::Rename(name) => taken(self, name.rename.to_string(), &name.ident),
            UseTree::Glob(_) => self.takes_all.push(before.clone()),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take(tree, before, passes_on);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        let (name, attributes) = match item {
            Item::Const(item) => (Some(&item.ident), &item.attrs),
            Item::Enum(item) => (Some(&item.ident), &item.attrs),
            Item::Fn(item) => (Some(&item.sig.ident), &item.attrs),
            Item::Macro(item) => (item.ident.as_ref(), &item.attrs),
            Item::Static(item) => (Some(&item.ident), &item.attrs),
            Item::Struct(item) => (Some(&item.ident), &item.attrs),
            Item::Trait(item) => (Some(&item.ident), &item.attrs),
            Item::Type(item) => (Some(&item.ident), &item.attrs),
            Item::Union(item) => (Some(&item.ident), &item.attrs),
            Item::Impl(item) => (None, &item.attrs),
            _ => return,
        };
        if !is_for_tests(attributes) {
            self.defines.extend(name.map(ToString::to_string));
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.take(&item.tree, &mut Name::new(), false);
    }

    /// The visibility of an item is not a need of it.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.names.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    /// The arguments of a macro are not parsed: paths in them are found by their shape.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        let text = call.tokens.to_string().replace(" :: ", "::").replace(":: ", "::");
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let paths = words.filter(|word| word.contains("::")).map(|word| word.trim_matches(':'));
        self.names.extend(paths.map(|path| path.split("::").map(str::to_owned).collect()));
    }
}

/// The largest groups of files each of which needs all others of its group, by way of others or at once.
fn circles<'a>(needs: &BTreeMap<&'a Path, BTreeSet<&'a Path>>) -> Vec<BTreeSet<&'a Path>> {
    let reached = |from: &'a Path| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(needs.get(file).into_iter().flatten().filter(|file| reached.insert(**file)));
        }
        reached
    };
    let reach: BTreeMap<&Path, _> = needs.keys().map(|file| (*file, reached(file))).collect();
    let circle = |file: &&Path| -> BTreeSet<&Path> {
        reach[file].iter().copied().filter(|other| reach[other].contains(file)).collect()
    };
    let all: BTreeSet<_> = needs.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
    all.into_iter().collect()
}

fn tree() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize().expect("the tree")
}

/// The roots of the tree's crates.
fn roots() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(tree().join("Cargo.toml")).expect("Cargo.toml");
    let members = manifest.lines().find(|line| line.starts_with("members = ")).expect("members");
    let homes: Vec<PathBuf> = members.split('"').skip(1).step_by(2).map(|home| tree().join(home)).collect();
    assert!(homes.len() > 10, "{homes:?}");
    let roots = homes.iter().flat_map(|home| ["src/lib.rs", "src/main.rs"].map(|root| home.join(root)));
    roots.filter(|root| root.exists()).collect()
}

#[test]
fn no_circle_of_files_is_larger_than_is_argued_for() {
    let mut found = BTreeSet::new();
    for root in roots() {
        let modules = Crate::read(&root);
        let needs = modules.needs();
        if std::env::var_os("IRONVERBS_SHOW").is_some() {
            for (file, needed) in &needs {
                println!("{} {needed:?}", file.display());
            }
        }
        for circle in circles(&needs).into_iter().filter(|circle| circle.len() > BEARABLE) {
            let names: Vec<String> = circle
                .iter()
                .map(|file| file.strip_prefix(tree()).expect("in the tree").display().to_string())
                .collect();
            found.insert(names.join(" "));
        }
    }
    let page = fs::read_to_string(tree().join("docs/README.md")).expect("docs/README.md");
    let argued = page.split_once(ARGUED).map_or("", |(_, after)| after);
    let argued = argued.split("\n## ").next().unwrap_or_default();
    let argued: BTreeSet<String> =
        argued.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned).collect();
    assert!(
        found == argued,
        "expected these circles of files to stand in docs/README.md below \"{ARGUED}\", each with its reason:\n{}\nfound there:\n{}",
        found.into_iter().collect::<Vec<_>>().join("\n"),
        argued.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn a_circle_by_way_of_a_name_passed_on_is_seen() {
    let home = std::env::temp_dir().join(format!("ironverbs-circles-{}", std::process::id()));
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(home.join("b")).expect("a directory");
    let write = |name: &str, text: &str| fs::write(home.join(name), text).expect("a file");
    write("lib.rs", "mod a; mod b; mod d; pub use a::A;");
    write("a.rs", "use crate::b; pub struct A(b::C);");
    write("b/mod.rs", "mod c; pub use c::C;");
    write("b/c.rs", "pub struct C(Box<crate::A>); #[cfg(test)] mod t { use crate::d::D; }");
    write("d.rs", "pub type D = crate::A;");
    let modules = Crate::read(&home.join("lib.rs"));
    let needs = modules.needs();
    let circles = circles(&needs);
    let names: Vec<Vec<_>> = circles
        .iter()
        .map(|circle| circle.iter().map(|file| file.strip_prefix(&home).expect("")).collect())
        .collect();
    assert_eq!(names, [[Path::new("a.rs"), Path::new("b/c.rs")]]);
    fs::remove_dir_all(home).expect("the directory");
}
