//! Parser for `struct mlx5_ifc_*_bits`: each `u8` of an array is one bit.

use super::lexer::{Cursor, Token, tokens};
use std::collections::{BTreeMap, HashMap};

/// Named fields of one structure: offset and width in bits. Includes members of anonymous structures and unions.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Offset and width by name.
    pub fields: BTreeMap<String, (usize, usize)>,
    /// Total size in bits.
    pub size: usize,
}

/// Every `mlx5_ifc_<name>_bits` of a header.
pub struct Ifc {
    tokens: Vec<Token>,
    /// By tag: start of the body, and whether it is a union.
    bodies: HashMap<String, (usize, bool)>,
}

impl Ifc {
    /// Reads the text of a header.
    pub fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut bodies = HashMap::new();
        for (i, window) in tokens.windows(3).enumerate() {
            if let [Token::Name(keyword), Token::Name(tag), open] = window {
                if tag.starts_with("mlx5_ifc_") && open.is('{') {
                    bodies.insert(tag.clone(), (i + 3, keyword == "union"));
                }
            }
        }
        Self { tokens, bodies }
    }

    /// `mlx5_ifc_<name>_bits`, if the header has it.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        let tag = format!("mlx5_ifc_{name}_bits");
        self.bodies.contains_key(&tag).then(|| self.tagged(&tag))
    }

    fn tagged(&self, tag: &str) -> Shape {
        let &(at, union) = self.bodies.get(tag).unwrap_or_else(|| panic!("mlx5_ifc.h has no {tag}"));
        self.members(&mut Cursor { tokens: &self.tokens, at }, union)
    }

    fn members(&self, c: &mut Cursor<'_>, union: bool) -> Shape {
        let mut shape = Shape::default();
        while !c.eat('}') {
            let keyword = c.name().expect("a member");
            // Newer headers use this for flexible array members. They have no size.
            if keyword == "DECLARE_FLEX_ARRAY" {
                while !c.eat(';') {
                    c.next().expect("an end after DECLARE_FLEX_ARRAY");
                }
                continue;
            }
            let start = if union { 0 } else { shape.size };
            let mut inner = Shape::default();
            match keyword {
                "u8" => inner.size = 1,
                "struct" | "union" if c.eat('{') => inner = self.members(c, keyword == "union"),
                "struct" | "union" => {
                    let tag = c.name().expect("a tag");
                    inner.size = self.tagged(tag).size;
                }
                other => panic!("mlx5_ifc.h: member of unknown type {other}"),
            }
            let name = c.name();
            let mut width = inner.size;
            while c.eat('[') {
                width *= match c.next() {
                    Some(Token::Number(n)) => {
                        let n = *n as usize;
                        assert!(c.eat(']'));
                        n
                    }
                    Some(Token::Mark(']')) => 0,
                    // A constant defined elsewhere; none of our structures contains one.
                    _ => {
                        while !c.eat(']') {
                            c.at += 1;
                        }
                        0
                    }
                };
            }
            assert!(c.eat(';'), "mlx5_ifc.h: no end after member {name:?}");
            match name {
                Some(name) if width > 0 && !name.starts_with("reserved") => {
                    shape.fields.insert(name.into(), (start, width));
                }
                Some(_) => {}
                None => shape.fields.extend(inner.fields.into_iter().map(|(n, (o, w))| (n, (start + o, w)))),
            }
            shape.size = if union { shape.size.max(width) } else { start + width };
        }
        shape
    }
}

#[test]
fn arrays_without_a_length_take_no_room() {
    let old = "struct mlx5_ifc_list_bits { u8 count[0x10]; struct mlx5_ifc_entry_bits entry[]; };";
    let new = "struct mlx5_ifc_list_bits { u8 count[0x10]; \
               union { DECLARE_FLEX_ARRAY(struct mlx5_ifc_entry_bits, entry); DECLARE_FLEX_ARRAY(u8, byte); }; };";
    for list in [old, new] {
        let ifc = Ifc::parse(&format!("struct mlx5_ifc_entry_bits {{ u8 a[0x20]; }}; {list}"));
        let shape = ifc.shape("list").expect("it is there");
        assert_eq!((shape.size, &shape.fields), (16, &BTreeMap::from([("count".into(), (0, 16))])), "{list}");
    }
}
