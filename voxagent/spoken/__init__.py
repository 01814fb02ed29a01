"""Written text to spoken words: the rules, by what they recognise and by language. Pure."""
