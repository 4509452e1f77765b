package run

import "context"

type progressKey struct{}

// WithProgress returns a context in which Progress calls show.
func WithProgress(ctx context.Context, show func(text string)) context.Context {
	return context.WithValue(ctx, progressKey{}, show)
}

// Progress reports the progress of a long step, as text for status.
func Progress(ctx context.Context, text string) {
	if show, ok := ctx.Value(progressKey{}).(func(text string)); ok {
		show(text)
	}
}
