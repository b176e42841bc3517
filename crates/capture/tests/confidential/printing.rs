//! A tracepoint's format file: its records as bytes, and as the text that the kernel prints of them.
//!
//! The print format is C: `"msr_%s %x = 0x%llx%s", REC->write ? "write" : "read", REC->ecx, ...`. As much of C is
//! understood as KVM's and the scheduler's formats need.

use std::collections::BTreeMap;

/// A value of a field, or of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PrintedValue {
    Number(i128),
    Text(String),
}

impl PrintedValue {
    fn number(&self) -> i128 {
        match self {
            PrintedValue::Number(n) => *n,
            PrintedValue::Text(text) => panic!("{text:?} is no number"),
        }
    }
}

/// Decimal, or hexadecimal after 0x.
pub(crate) fn number(text: &str) -> PrintedValue {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    PrintedValue::Number(parsed.unwrap_or_else(|e| panic!("{text}: {e}")))
}

#[derive(Clone, Debug)]
struct PrintedField {
    name: String,
    offset: usize,
    size: usize,
    is_text: bool,
}

/// A format file.
#[derive(Clone, Debug)]
pub(crate) struct PrintFormat {
    pub(crate) name: String,
    pub(crate) text: String,
    id: u16,
    fields: Vec<PrintedField>,
    tokens: Vec<Token>,
}

impl PrintFormat {
    pub(crate) fn parse(text: &str) -> PrintFormat {
        let line = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        let fields = text.lines().filter_map(|line| {
            let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
            let declared = parts.next()?;
            let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
            let (offset, size) = (number("offset:")?, number("size:")?);
            let name = declared.rsplit(' ').next()?;
            let (name, is_text) = match name.split_once('[') {
                Some((name, _)) => (name, true),
                None => (name, false),
            };
            Some(PrintedField { name: name.to_owned(), offset, size, is_text })
        });
        PrintFormat {
            name: line("name:").to_owned(),
            text: text.trim_end().to_owned() + "\n",
            id: line("ID:").parse().unwrap(),
            fields: fields.collect(),
            tokens: tokens(line("print fmt:")),
        }
    }

    /// The fields of its own.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        let own = self.fields.iter().filter(|field| !field.name.starts_with("common_"));
        own.map(|field| field.name.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    pub(crate) fn size(&self, name: &str) -> usize {
        self.fields.iter().find(|field| field.name == name).unwrap().size
    }

    /// A record of a thread. Fields without a value are 0.
    pub(crate) fn record(&self, tid: u32, values: &BTreeMap<String, PrintedValue>) -> Vec<u8> {
        let end = self.fields.iter().map(|field| field.offset + field.size).max().unwrap();
        let mut raw = vec![0; end];
        for field in &self.fields {
            let value = match field.name.as_str() {
                "common_type" => Some(PrintedValue::Number(self.id.into())),
                "common_pid" => Some(PrintedValue::Number(tid.into())),
                name => values.get(name).cloned(),
            };
            let bytes = match value {
                Some(PrintedValue::Number(n)) => n.to_le_bytes().to_vec(),
                Some(PrintedValue::Text(text)) => {
                    assert!(field.is_text && text.len() < field.size, "{text}");
                    let mut bytes = text.into_bytes();
                    bytes.resize(field.size, 0);
                    bytes
                }
                None => continue,
            };
            raw[field.offset..][..field.size].copy_from_slice(&bytes[..field.size]);
        }
        raw
    }

    /// The text behind the event's name.
    pub(crate) fn print(&self, values: &BTreeMap<String, PrintedValue>) -> String {
        let mut parser = Parser { tokens: &self.tokens, at: 0, values };
        let PrintedValue::Text(format) = parser.expression() else { panic!("no format") };
        let mut arguments = Vec::new();
        while parser.take(",") {
            arguments.push(parser.expression());
        }
        assert_eq!(parser.at, self.tokens.len(), "{}", self.name);
        printf(&format, &arguments)
    }
}

/// printk's formats.
fn printf(format: &str, arguments: &[PrintedValue]) -> String {
    let mut arguments = arguments.iter();
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out += before;
        let end = after.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'l' | 'h')).unwrap();
        let (flags, kind) = (after[..end].trim_matches('l'), &after[end..=end]);
        let value = arguments.next().expect("an argument");
        let (alternate, width) = match flags.strip_prefix('#') {
            Some(width) => (true, width),
            None => (false, flags),
        };
        let width: usize = width.trim_end_matches('l').parse().unwrap_or(0);
        match (kind, value) {
            ("s" | "c", PrintedValue::Text(text)) => out += text,
            ("d" | "u", PrintedValue::Number(n)) => out += &n.to_string(),
            // No prefix before a zero, as vsnprintf has it.
            ("x", PrintedValue::Number(n)) if alternate && *n != 0 => {
                out += &format!("{n:#0width$x}")
            }
            ("x", PrintedValue::Number(n)) => out += &format!("{n:0width$x}"),
            other => panic!("%{flags}{other:?}"),
        }
        rest = &after[end + 1..];
    }
    out + rest
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Number(i128),
    Text(String),
    Word(String),
    Sign(&'static str),
}

const SIGNS: [&str; 26] = [
    "->", "<<", "==", "!=", "&&", "||", "<=", ">=", "?", ":", "&", "|", "+", "-", "~", "!", "<",
    ">", "(", ")", "{", "}", ",", "*", "[", "]",
];

fn tokens(mut text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start();
        let Some(first) = text.chars().next() else { return tokens };
        if let Some(rest) = text.strip_prefix('"') {
            let (inside, rest) = rest.split_once('"').unwrap();
            tokens.push(Token::Text(inside.to_owned()));
            text = rest;
        } else if let Some(rest) = text.strip_prefix('\'') {
            let (inside, rest) = rest.split_once('\'').unwrap();
            tokens.push(Token::Text(inside.to_owned()));
            text = rest;
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (word, rest) = text.split_at(end.unwrap_or(text.len()));
            tokens.push(if first.is_ascii_digit() {
                Token::Number(
                    super::printing::number(word.trim_end_matches(['U', 'L', 'u', 'l'])).number(),
                )
            } else {
                Token::Word(word.to_owned())
            });
            text = rest;
        } else {
            let sign = SIGNS.iter().find(|sign| text.starts_with(*sign));
            let sign = sign.unwrap_or_else(|| panic!("{text}"));
            tokens.push(Token::Sign(sign));
            text = &text[sign.len()..];
        }
    }
}

/// Linux arch/arm64/include/asm/ptrace.h, `enum exception_type`.
const ENUMERATORS: [(&str, i128); 4] = [
    ("except_type_sync", 0),
    ("except_type_irq", 0x80),
    ("except_type_fiq", 0x100),
    ("except_type_serror", 0x180),
];

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    values: &'a BTreeMap<String, PrintedValue>,
}

/// Binary operators, those that bind least first.
const BINARY: [&[&str]; 9] = [
    &["||"],
    &["&&"],
    &["|"],
    &["&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["<<"],
    &["+", "-"],
    &["*"],
];

impl Parser<'_> {
    fn take(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.tokens.get(self.at), Some(Token::Sign(next)) if *next == sign);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, sign: &str) {
        assert!(self.take(sign), "{sign} at {:?}", self.tokens.get(self.at..));
    }

    fn expression(&mut self) -> PrintedValue {
        let condition = self.binary(0);
        if !self.take("?") {
            return condition;
        }
        // GNU C's `a ?: b`.
        if self.take(":") {
            let otherwise = self.expression();
            return if condition == PrintedValue::Number(0) { otherwise } else { condition };
        }
        let yes = self.expression();
        self.expect(":");
        let no = self.expression();
        if condition.number() == 0 { no } else { yes }
    }

    fn binary(&mut self, level: usize) -> PrintedValue {
        let Some(signs) = BINARY.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1);
        while let Some(sign) = signs.iter().find(|sign| self.take(sign)) {
            let right = self.binary(level + 1);
            let (a, b) = (left.number(), right.number());
            left = PrintedValue::Number(match *sign {
                "||" => (a != 0 || b != 0).into(),
                "&&" => (a != 0 && b != 0).into(),
                "|" => a | b,
                "&" => a & b,
                "==" => (a == b).into(),
                "!=" => (a != b).into(),
                "<" => (a < b).into(),
                ">" => (a > b).into(),
                "<=" => (a <= b).into(),
                ">=" => (a >= b).into(),
                "<<" => a << b,
                "+" => a + b,
                "-" => a - b,
                _ => a * b,
            });
        }
        left
    }

    fn unary(&mut self) -> PrintedValue {
        if self.take("!") {
            return PrintedValue::Number((self.unary().number() == 0).into());
        }
        if self.take("~") {
            return PrintedValue::Number(!self.unary().number());
        }
        if self.take("-") {
            return PrintedValue::Number(-self.unary().number());
        }
        if self.take("(") {
            let inside = self.expression();
            self.expect(")");
            return inside;
        }
        let token = self.tokens[self.at].clone();
        self.at += 1;
        match token {
            Token::Number(n) => PrintedValue::Number(n),
            Token::Text(mut text) => {
                while let Some(Token::Text(more)) = self.tokens.get(self.at) {
                    text += more;
                    self.at += 1;
                }
                PrintedValue::Text(text)
            }
            Token::Word(word) if word == "REC" => {
                self.expect("->");
                let Token::Word(field) = &self.tokens[self.at] else { panic!("REC-> of nothing") };
                self.at += 1;
                self.values.get(field).cloned().unwrap_or(PrintedValue::Number(0))
            }
            Token::Word(word) => match ENUMERATORS.iter().find(|(name, _)| *name == word) {
                Some((_, value)) => PrintedValue::Number(*value),
                None => self.call(&word),
            },
            Token::Sign(sign) => panic!("{sign} where a value is expected"),
        }
    }

    /// `__print_symbolic(value, { number, "name" }, ...)` or `__print_flags(value, "|", ...)`.
    fn call(&mut self, name: &str) -> PrintedValue {
        self.expect("(");
        let value = self.expression().number();
        // Linux include/linux/string_choices.h.
        if name == "str_read_write" {
            self.expect(")");
            return PrintedValue::Text(if value == 0 { "write" } else { "read" }.to_owned());
        }
        let is_flags = match name {
            "__print_flags" => true,
            "__print_symbolic" => false,
            other => panic!("{other}"),
        };
        let mut between = String::new();
        if is_flags {
            self.expect(",");
            let PrintedValue::Text(text) = self.expression() else { panic!("no separator") };
            between = text;
        }
        let mut names = Vec::new();
        while self.take(",") {
            self.expect("{");
            let number = self.expression().number();
            self.expect(",");
            let PrintedValue::Text(name) = self.expression() else { panic!("no name") };
            self.expect("}");
            names.push((number, name));
        }
        self.expect(")");
        if !is_flags {
            let known = names.into_iter().find(|(number, _)| *number == value);
            // trace_print_symbols_seq of Linux kernel/trace/trace_output.c.
            return PrintedValue::Text(
                known.map_or_else(|| format!("{value:#x}"), |(_, name)| name),
            );
        }
        let mut rest = value;
        let mut parts = Vec::new();
        for (number, name) in names {
            if number != 0 && rest & number == number {
                parts.push(name);
                rest &= !number;
            }
        }
        if rest != 0 {
            parts.push(format!("{rest:#x}"));
        }
        PrintedValue::Text(parts.join(&between))
    }
}
