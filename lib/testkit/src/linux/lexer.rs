//! Tokens of a C header: names, numbers and single characters, without comments and preprocessor lines.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Name(String),
    Number(u64),
    Mark(char),
}

impl Token {
    pub fn is(&self, mark: char) -> bool {
        *self == Token::Mark(mark)
    }
    pub fn name(&self) -> Option<&str> {
        match self {
            Token::Name(n) => Some(n),
            _ => None,
        }
    }
}

pub fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        } else if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if c == '#' {
            rest = after_directive(rest);
        } else if c.is_ascii_alphabetic() || c == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            out.push(Token::Name(rest[..end].into()));
            rest = &rest[end..];
        } else if c.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            out.push(number(&rest[..end]).map_or(Token::Mark('?'), Token::Number));
            rest = &rest[end..];
        } else {
            if !c.is_whitespace() {
                out.push(Token::Mark(c));
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn after_directive(mut rest: &str) -> &str {
    while let Some((line, after)) = rest.split_once('\n') {
        rest = after;
        if !line.ends_with('\\') {
            return rest;
        }
    }
    ""
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(['u', 'U', 'l', 'L']);
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A position in a token list.
pub struct Cursor<'t> {
    pub tokens: &'t [Token],
    pub at: usize,
}

impl<'t> Cursor<'t> {
    pub fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at)
    }
    pub fn next(&mut self) -> Option<&'t Token> {
        let token = self.tokens.get(self.at);
        self.at += 1;
        token
    }
    /// Consumes `mark` if it is next.
    pub fn eat(&mut self, mark: char) -> bool {
        let found = self.peek().is_some_and(|t| t.is(mark));
        self.at += usize::from(found);
        found
    }
    /// Consumes the next token if it is a name.
    pub fn name(&mut self) -> Option<&'t str> {
        let name = self.peek()?.name()?;
        self.at += 1;
        Some(name)
    }
}
