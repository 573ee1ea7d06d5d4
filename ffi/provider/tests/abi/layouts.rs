//! Loading: every known layout is accepted; an unknown one is refused with exactly one line of output and no registration.
//!
//! The libraries here are synthesized from the tables of `abi::ops`, so that each release and each deviation can be tested without its
//! rdma-core; `scripts/userlands.sh` does the same with the real ones.

use ironverbs_provider::abi::ops::{CONTEXT_SLOTS, EXTENDED_SLOTS, OpsTable, PRIV_WORD};
use ironverbs_provider::abi::public::ibv_context;
use ironverbs_provider::abi::verbs_types::verbs_device;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A synthetic libibverbs.
struct Library {
    name: &'static str,
    register: &'static str,
    /// Operations in slot order.
    ops: Vec<String>,
    /// Words of `struct verbs_context` before `ibv_context`.
    words: usize,
    qp_comp_mask: usize,
    /// Error of the value of `sz`.
    sz_error: usize,
    refcount: usize,
    /// The function by which it sends a command.
    write: &'static str,
}

impl Library {
    fn of(release: u16, name: &'static str) -> Self {
        let table = OpsTable::of(release);
        let words = match release {
            36 => 40,
            59 => 43,
            62 => 44,
            _ => 46,
        };
        Self {
            name,
            register: if release == 36 { "verbs_register_driver_34" } else { "verbs_register_driver_59" },
            ops: (0..table.len()).filter_map(|slot| table.name(slot)).map(str::to_owned).collect(),
            words,
            qp_comp_mask: if release == 36 { 352 } else { 360 },
            sz_error: 0,
            refcount: offset_of!(verbs_device, refcount),
            write: "write(fd, &c, 1)",
        }
    }

    fn source(&self) -> String {
        let inner = 8 * self.words;
        let size = inner + size_of::<ibv_context>();
        let mut public = String::new();
        let places = CONTEXT_SLOTS
            .iter()
            .enumerate()
            .map(|(i, name)| ((inner + offset_of!(ibv_context, ops)) / 8 + i, name));
        let extended = EXTENDED_SLOTS.iter().take(self.words).enumerate();
        for (word, name) in places.chain(extended.map(|(i, name)| (self.words - 1 - i, name))) {
            if let Some(slot) = self.ops.iter().position(|op| op == name) {
                writeln!(public, "  vctx[{word}] = ops[{slot}];").expect("a String takes all");
            }
        }
        format!(
            r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void {register}(void *ops) {{ (void)ops; puts("registered"); fflush(stdout); }}
void *_verbs_init_and_alloc_context(char *device, int cmd_fd, size_t room, void *offset, uint32_t id) {{
  (void)offset; (void)id;
  uintptr_t *vctx = calloc(1, room);
  ++*(int *)(device + {refcount});
  vctx[{priv_word}] = (uintptr_t)calloc(1, 8 * {ops} + 64);
  vctx[{sz_word}] = {size} + {sz_error};
  vctx[{words}] = (uintptr_t)device;
  *(int *)((char *)vctx + {fd}) = cmd_fd;
  *(int *)((char *)vctx + {fd} + 4) = -1;
  return vctx;
}}
void verbs_uninit_context(uintptr_t *vctx) {{
  free((void *)vctx[{priv_word}]);
  --*(int *)((char *)vctx[{words}] + {refcount});
}}
void verbs_set_ops(uintptr_t *vctx, uintptr_t *ops) {{
  for (int i = 0; i < {ops}; i++) ((uintptr_t *)vctx[{priv_word}])[4 + i] = ops[i];
{public}}}
void *ibv_qp_to_qp_ex(char *qp) {{ return *(uint32_t *)(qp + {qp}) & 2 ? qp : 0; }}
int ibv_create_comp_channel(int fd) {{ char c = 0; return (int){write}; }}
"#,
            register = self.register,
            refcount = self.refcount,
            priv_word = self.words - PRIV_WORD,
            sz_word = self.words - 1,
            sz_error = self.sz_error,
            words = self.words,
            fd = inner + offset_of!(ibv_context, cmd_fd),
            ops = self.ops.len(),
            qp = self.qp_comp_mask,
            write = self.write,
        )
    }

    /// Builds and loads it, and then the provider, in a separate process.
    fn load(&self) -> Output {
        load(&[self.build()])
    }

    fn build(&self) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layout-{}", self.name));
        std::fs::create_dir_all(&dir).expect("a directory in the target directory");
        let library = dir.join("libibverbs.so.1");
        let source = dir.join("library.c");
        std::fs::write(&source, self.source()).expect("writing the source");
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o"];
        cc(Command::new("cc").args(shared).arg(&library).arg(&source));
        library
    }
}

/// Loads libraries and then the provider in a separate process.
fn load(libraries: &[PathBuf]) -> Output {
    let dir = libraries[0].parent().expect("in a directory");
    let (source, program) = (dir.join("loader.c"), dir.join("loader"));
    std::fs::write(&source, LOADER).expect("writing the source");
    cc(Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-ldl"));
    let mut loader = Command::new("timeout");
    loader.arg("10").arg(&program).args(libraries).arg(provider());
    loader.output().expect("the loader")
}

const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (!dlopen(argv[i], RTLD_NOW)) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  return 0;
}
"#;

fn cc(command: &mut Command) {
    let output = command.output().expect("a C compiler (apt-get install gcc)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The provider as built by cargo for this test.
fn provider() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let deps = test.parent().expect("in a directory");
    let found = [deps, deps.parent().unwrap_or(deps)].map(|dir| dir.join("libironverbs_provider.so"));
    found.into_iter().find(|path| path.exists()).expect("cargo builds the provider before its tests")
}

fn taken(library: &Library) {
    let output = library.load();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((&*out, &*err, output.status.code()), ("registered\n", "", Some(0)), "{}", library.name);
}

fn refused(library: &Library, because: &str) {
    let output = library.load();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((&*out, output.status.code()), ("", Some(0)), "{}: {err}", library.name);
    assert_eq!(err.lines().count(), 1, "{}: one line, not {err:?}", library.name);
    assert!(err.starts_with("ironverbs: ") && err.contains(because), "{}: {err}", library.name);
}

#[test]
fn every_known_release_is_taken() {
    for (release, name) in [(36, "v36"), (59, "v59"), (62, "v62"), (64, "v64"), (65, "v65")] {
        taken(&Library::of(release, name));
    }
}

#[test]
fn each_library_of_a_process_is_taken_or_refused_for_itself() {
    let known = [Library::of(36, "beside-36"), Library::of(65, "beside-65")].map(|library| library.build());
    let unknown = Library { sz_error: 8, ..Library::of(59, "beside-unknown") }.build();
    let output = load(&[known[0].clone(), unknown, known[1].clone()]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((&*out, err.lines().count()), ("registered\nregistered\n", 1), "{err}");
    assert!(err.contains("struct verbs_context: no sz"), "{err}");
}

#[test]
fn an_unknown_operation_in_the_table_is_refused() {
    let mut library = Library::of(65, "inserted");
    library.ops.insert(20, "brand_new_op".into());
    refused(&library, "94 operations in an order of no known release");
    let mut library = Library::of(65, "swapped");
    library.ops.swap(30, 31);
    refused(&library, "in an order of no known release");
    let mut library = Library::of(36, "appended");
    library.ops.push("zap".into());
    refused(&library, "77 operations");
}

#[test]
fn a_context_that_does_not_state_its_size_is_refused() {
    let library = Library { sz_error: 8, ..Library::of(36, "size") };
    refused(&library, "struct verbs_context: no sz");
}

#[test]
fn a_context_that_grew_by_an_operation_is_refused() {
    let mut library = Library::of(65, "grown");
    library.words += 1;
    // An empty new word at the low end is harmless. One that holds an operation is not.
    taken(&library);
    let mut library = Library::of(59, "grown-op");
    library.words += 1;
    library.ops.insert(1, "alloc_buf".into());
    refused(&library, "struct verbs_context");
}

#[test]
fn a_device_counted_elsewhere_is_refused() {
    let library = Library { refcount: offset_of!(verbs_device, refcount) + 8, ..Library::of(65, "refcount") };
    refused(&library, "struct verbs_device");
}

#[test]
fn a_qp_with_its_mask_elsewhere_is_refused() {
    refused(&Library { qp_comp_mask: 640, ..Library::of(65, "qp-far") }, "struct verbs_qp");
    refused(&Library { qp_comp_mask: 40, ..Library::of(65, "qp-near") }, "struct verbs_qp");
}

#[test]
fn a_registration_of_another_number_is_refused() {
    refused(
        &Library { register: "verbs_register_driver_99", ..Library::of(65, "register") },
        "verbs_register_driver",
    );
}

#[test]
fn a_library_that_does_not_write_commands_is_refused() {
    refused(&Library { write: "pwrite64(fd, &c, 1, 0)", ..Library::of(65, "write") }, "does not call write");
}

#[test]
fn without_libibverbs_nothing_is_said() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (dir.join("alone.c"), dir.join("alone"));
    std::fs::write(&source, LOADER).expect("writing the source");
    cc(Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-ldl"));
    let output = Command::new(&program).arg(provider()).output().expect("the loader");
    assert_eq!((output.stdout.len(), output.stderr.len(), output.status.code()), (0, 0, Some(0)));
}
