// The table of one instruction set's integer products; included last, after integer_body.h or integer_plain.h.

constexpr IntegerLevel integer_level(const char *name) {
    return {.name = name,
            .measure = measure,
            .to_bytes = to_bytes,
            .choose = choose,
            .choose_second = choose_second,
            .multiply = multiply,
            .together = 4,
            .planes = planes,
            .pixels = pixels_at_once,
            .fours = false,
            .turned = false,
            .ends = false,
            .turn = turn,
            .own = own,
            .end_tokens = end_tokens};
}
