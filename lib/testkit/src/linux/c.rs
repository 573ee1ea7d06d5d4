//! Parser for the plain C in the driver's headers: packed structures of fixed-width integers, and constants.

use super::lexer::{Cursor, Token, tokens};
use std::collections::{BTreeMap, HashMap};

/// Named members: offset and length in bytes. Includes members of anonymous structures and unions.
#[derive(Default)]
pub struct Struct {
    /// Offset and length by name.
    pub members: BTreeMap<String, (usize, usize)>,
    /// Total size in bytes.
    pub size: usize,
}

/// One or more headers.
pub struct Header {
    tokens: Vec<Token>,
    constants: HashMap<String, u64>,
}

impl Header {
    /// Reads the text of one or more headers.
    pub fn parse(text: &str) -> Self {
        let mut header = Self { tokens: tokens(text), constants: HashMap::new() };
        for line in text.lines().filter_map(|l| l.strip_prefix("#define")) {
            if let [Token::Name(name), value @ ..] = &tokens(line)[..] {
                if let Some(value) = header.evaluate(value) {
                    header.constants.insert(name.clone(), value);
                }
            }
        }
        let opens = header.tokens.windows(3).enumerate().filter_map(|(i, w)| match w {
            [Token::Name(e), open, _] if e == "enum" && open.is('{') => Some(i + 2),
            [Token::Name(e), Token::Name(_), open] if e == "enum" && open.is('{') => Some(i + 3),
            _ => None,
        });
        for at in opens.collect::<Vec<_>>() {
            header.enumerators(at);
        }
        header
    }

    fn enumerators(&mut self, at: usize) {
        let Some(len) = self.tokens[at..].iter().position(|t| t.is('}')) else { return };
        let body = self.tokens[at..at + len].to_vec();
        let mut next = Some(0);
        for item in body.split(|t| t.is(',')) {
            let value = match item {
                [Token::Name(_), eq, value @ ..] if eq.is('=') => self.evaluate(value),
                _ => next,
            };
            if let (Some(name), Some(value)) = (item.first().and_then(Token::name), value) {
                self.constants.insert(name.into(), value);
            }
            next = value.map(|v| v.wrapping_add(1));
        }
    }

    /// Evaluates a number, a known constant or a shift of these, optionally with parentheses and a cast.
    fn evaluate(&self, expression: &[Token]) -> Option<u64> {
        match expression {
            [Token::Number(n)] => Some(*n),
            [Token::Name(n)] => self.value(n),
            [open, Token::Name(ty), close, rest @ ..]
                if open.is('(') && close.is(')') && ["u8", "u16", "u32", "u64"].contains(&&ty[..]) =>
            {
                self.evaluate(rest)
            }
            [open, inner @ .., close] if open.is('(') && close.is(')') => self.evaluate(inner),
            [a, Token::Mark('<'), Token::Mark('<'), b] => {
                let (a, b) =
                    (self.evaluate(std::slice::from_ref(a))?, self.evaluate(std::slice::from_ref(b))?);
                a.checked_shl(b as u32)
            }
            _ => None,
        }
    }

    /// The value of an enumerator or constant.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.constants.get(name).copied()
    }

    /// All enumerators and constants with names that start with `prefix`, with the rest of the name.
    pub fn named<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.constants.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, *value)))
    }

    /// `struct name { ... }`.
    pub fn structure(&self, name: &str) -> Struct {
        let starts = |w: &[Token]| w[0].name() == Some("struct") && w[1].name() == Some(name) && w[2].is('{');
        let at = self.tokens.windows(3).position(starts);
        let at = at.unwrap_or_else(|| panic!("the mlx5 headers have no struct {name}")) + 3;
        self.body(&mut Cursor { tokens: &self.tokens, at }, false)
    }

    fn body(&self, c: &mut Cursor<'_>, union: bool) -> Struct {
        let mut out = Struct::default();
        let mut bits = 0;
        while !c.eat('}') && !c.eat(')') {
            let word = c.name().expect("a member");
            let start = if union { 0 } else { out.size };
            let inner = self.member(c, word);
            let name = c.name().filter(|n| *n != "__packed");
            let mut len = inner.size;
            if c.eat('[') {
                len *= match c.next() {
                    Some(Token::Number(n)) => *n as usize,
                    _ => 0,
                };
                while len > 0 && !c.eat(']') {
                    c.at += 1;
                }
                c.eat(']');
            }
            if c.eat(':') {
                // Bit fields fill whole bytes; the order of bits within them is up to the compiler.
                bits += match c.next() {
                    Some(Token::Number(n)) => *n as usize,
                    _ => 0,
                };
                len = bits / 8;
                bits %= 8;
            }
            if let Some(name) = name {
                out.members.insert(name.into(), (start, len));
            }
            out.members.extend(inner.members.into_iter().map(|(n, (o, l))| (n, (start + o, l))));
            out.size = if union { out.size.max(len) } else { start + len };
            while c.eat(',') || c.eat(';') {}
        }
        out
    }

    /// The type of a member that begins with `word`, with its members if it is defined inline.
    fn member(&self, c: &mut Cursor<'_>, word: &str) -> Struct {
        let plain = |size| Struct { members: BTreeMap::new(), size };
        match word {
            "u8" | "__u8" => plain(1),
            "u16" | "__be16" => plain(2),
            "u32" | "__be32" => plain(4),
            "u64" | "__be64" => plain(8),
            // `struct_group(tag, members)`: the members again under a name.
            "struct_group" => {
                assert!(c.eat('('));
                c.at += 1;
                assert!(c.eat(','));
                self.body(c, false)
            }
            "struct" | "union" if c.eat('{') => self.body(c, word == "union"),
            "struct" | "union" => plain(self.structure(c.name().expect("a tag")).size),
            "DECLARE_FLEX_ARRAY" => {
                while !c.eat(')') {
                    c.at += 1;
                }
                plain(0)
            }
            other => panic!("the mlx5 headers have a member of unknown type {other}"),
        }
    }
}
